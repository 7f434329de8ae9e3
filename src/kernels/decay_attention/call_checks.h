// What every kernel of decay attention demands of a call before it looks at memory: a plan within its limits, a chunk table,
// and a workspace where it needs one; of a decode step, heads, sizes and dtypes too, which for the rest MakePlan looks at.
// C++17: CUDA's dispatch includes it.
#pragma once

#include <cstddef>

#include "core/error.h"
#include "kernels/decay_attention/args.h"

namespace halflife::kernels {

constexpr int kMaxHeadDim = 256;

struct PlanLimits {
  const char* device;                  // as in "on the CPU"
  int min_chunk_size, max_chunk_size;  // tokens
  int max_checkpoint_every;            // chunks
};

inline void CheckPlanAndTable(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                              const PlanLimits& limits, size_t workspace_bytes) {
  HL_CHECK(plan.chunk_size >= limits.min_chunk_size && plan.chunk_size <= limits.max_chunk_size,
           "decay attention: chunks of ", plan.chunk_size, " tokens; ", limits.min_chunk_size,
           " to ", limits.max_chunk_size, " work on ", limits.device);
  HL_CHECK(plan.checkpoint_every >= 1 && plan.checkpoint_every <= limits.max_checkpoint_every,
           "decay attention: a checkpoint every ", plan.checkpoint_every, " chunks; 1 to ",
           limits.max_checkpoint_every, " work on ", limits.device);
  HL_CHECK(args.num_sequences == 0 || args.sequence_begin != nullptr,
           "decay attention: ", args.num_sequences,
           " sequences without sequence_begin; see MakeChunkTable");
  HL_CHECK(args.num_chunks == 0 || args.chunks != nullptr, "decay attention: ", args.num_chunks,
           " chunks without their table; see MakeChunkTable");
  HL_CHECK(workspace_bytes == 0 || args.workspace != nullptr, "decay attention needs ",
           workspace_bytes, " bytes of workspace, got none");
}

// The CUDA kernels read constant decays, and write their gradients, as [Hd] or [Hd, K] without gaps.
inline void CheckConstantDecay(DecayKind kind, const TensorView& view, int num_heads,
                               int head_dim_k) {
  const int64_t width = IsPerChannel(kind) ? head_dim_k : 1;
  HL_CHECK(view.data == nullptr || IsPerToken(kind) || num_heads == 1 || view.stride_h == width,
           "decay attention on CUDA: heads of a constant log_decay or its gradient ", view.stride_h,
           " elements apart; ", width, " would work");
}

inline void CheckStepShape(const DecayAttentionStepArgs& args) {
  const int H = args.num_heads;
  const auto divides = [H](int heads) { return heads >= 1 && H % heads == 0; };
  HL_CHECK_AS(ExitCode::kUsage,
              H >= 1 && divides(args.num_q_heads) && divides(args.num_k_heads) &&
                  divides(args.num_v_heads) &&
                  (args.decay_kind == DecayKind::kNone || divides(args.num_decay_heads)),
              "decay attention step with ", args.num_q_heads, ", ", args.num_k_heads, ", ",
              args.num_v_heads, " and ", args.num_decay_heads,
              " heads of q, k, v and log_decay beside a state of ", H, "; divisors of ", H,
              " would work");
  HL_CHECK_AS(ExitCode::kUsage,
              args.head_dim_k >= 1 && args.head_dim_k <= kMaxHeadDim && args.head_dim_v >= 1 &&
                  args.head_dim_v <= kMaxHeadDim,
              "decay attention step with head sizes ", args.head_dim_k, " and ", args.head_dim_v,
              "; 1 to ", kMaxHeadDim, " would work");
}

inline void CheckStepDTypes(const DecayAttentionStepArgs& args, bool is_cuda) {
  const DType dtype = args.q.dtype;
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  HL_CHECK_AS(
      ExitCode::kUsage,
      (dtype == DType::kF32 || dtype == DType::kBF16 || (dtype == DType::kF64 && !is_cuda)) &&
          args.k.dtype == dtype && args.v.dtype == dtype && args.out.dtype == dtype,
      "decay attention step on ", is_cuda ? "CUDA" : "the CPU", " with q, k, v, out of ",
      Name(dtype), ", ", Name(args.k.dtype), ", ", Name(args.v.dtype), ", ", Name(args.out.dtype),
      "; one of bf16, fp32", is_cuda ? "" : ", fp64", " for all would work");
  HL_CHECK_AS(ExitCode::kUsage,
              (args.log_decay.data == nullptr || args.log_decay.dtype == wide) &&
                  (args.key_scale.data == nullptr || args.key_scale.dtype == wide),
              "decay attention step with log_decay of ", Name(args.log_decay.dtype),
              " and key_scale of ", Name(args.key_scale.dtype), " beside q of ", Name(dtype), "; ",
              Name(wide), " would work");
}

inline void CheckStep(const DecayAttentionStepArgs& args, bool is_cuda) {
  HL_CHECK(args.batch >= 0, "decay attention step of ", args.batch, " rows");
  CheckStepShape(args);
  CheckStepDTypes(args, is_cuda);
  if (args.batch == 0) return;  // no rows, no data
  HL_CHECK(args.q.data != nullptr && args.k.data != nullptr && args.v.data != nullptr &&
               args.out.data != nullptr,
           "decay attention step: one of q, k, v, out is missing");
  HL_CHECK(args.state != nullptr, "decay attention step without a state");
  HL_CHECK(args.norm_kind == NormKind::kNone || (args.norm != nullptr && args.norm_eps > 0),
           "decay attention step: a normaliser with ", args.norm == nullptr ? "no" : "a",
           " state and norm_eps ", args.norm_eps, "; a state and a positive norm_eps would work");
  HL_CHECK((args.decay_kind == DecayKind::kNone) == (args.log_decay.data == nullptr),
           "decay attention step: log_decay and its kind do not agree; both or neither would work");
  if (is_cuda)
    CheckConstantDecay(args.decay_kind, args.log_decay, args.num_decay_heads, args.head_dim_k);
}

}  // namespace halflife::kernels
