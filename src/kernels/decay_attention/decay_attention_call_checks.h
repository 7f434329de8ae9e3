// The checks that every kernel of decay attention makes before it accesses memory: a plan within
// the kernel's limits, a chunk table, a workspace if one is needed, and tensors with supported
// strides. For a decode step, which has no plan, also head counts, sizes and dtypes; MakePlan
// checks these for the other calls. C++17: CUDA's dispatch includes this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/error.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels {

struct PlanLimits {
  const char* device;                  // as in "on the CPU"
  int min_chunk_size, max_chunk_size;  // tokens
  int max_checkpoint_every;            // chunks
};

inline void CheckPlanAndTable(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                              const PlanLimits& limits, size_t workspace_bytes) {
  HL_CHECK(plan.chunk_size >= limits.min_chunk_size && plan.chunk_size <= limits.max_chunk_size,
           "decay attention: chunks of ", plan.chunk_size, " tokens are not supported. Use ",
           limits.min_chunk_size, " to ", limits.max_chunk_size, " on ", limits.device, ".");
  HL_CHECK(plan.checkpoint_every >= 1 && plan.checkpoint_every <= limits.max_checkpoint_every,
           "decay attention: a checkpoint every ", plan.checkpoint_every,
           " chunks is not supported. Use 1 to ", limits.max_checkpoint_every, " on ",
           limits.device, ".");
  HL_CHECK(args.num_sequences == 0 || args.sequence_begin != nullptr,
           "decay attention: ", args.num_sequences,
           " sequences without sequence_begin. Build it with MakeChunkTable.");
  HL_CHECK(args.num_chunks == 0 || args.chunks != nullptr, "decay attention: ", args.num_chunks,
           " chunks without their table. Build it with MakeChunkTable.");
  HL_CHECK(workspace_bytes == 0 || args.workspace != nullptr, "decay attention needs ",
           workspace_bytes, " bytes of workspace, got none");
}

struct ViewExtents {
  int64_t batch, seq_len, heads, width;
};

// Checks that a batch tile has at least one row, and that each of its rows is one sequence.
inline void CheckBatchTiles(const DecayAttentionArgs& args, int num_batch_tiles) {
  const int rows = args.batch > 1 ? args.batch : 1;
  const int most = args.num_sequences == args.batch ? rows : 1;
  HL_CHECK_AS(ExitCode::kUsage, num_batch_tiles >= 1 && num_batch_tiles <= most,
              "decay attention in ", num_batch_tiles, " batch tiles: a batch of ", args.batch,
              " with ", args.num_sequences, " sequences has 1 to ", most, " of them");
}

inline void CheckRead(const char* name, const TensorView& view) {
  HL_CHECK(view.data != nullptr, "decay attention: ", name, " is missing");
  HL_CHECK(view.stride_b >= 0 && view.stride_t >= 0 && view.stride_h >= 0,
           "decay attention: ", name, " has strides ", view.stride_b, ", ", view.stride_t, ", ",
           view.stride_h, " of b, t, h. Pass a copy without negative strides.");
}

// Checks that each element of an output has its own address: going from the smallest stride to the
// largest, every stride must pass over all elements of the inner dimensions.
inline void CheckWritten(const char* name, const TensorView& view, const ViewExtents& extents) {
  if (extents.batch == 0 || extents.seq_len == 0) return;
  CheckRead(name, view);
  std::pair<int64_t, int64_t> dims[] = {{view.stride_h, extents.heads},
                                        {view.stride_t, extents.seq_len},
                                        {view.stride_b, extents.batch}};
  const auto order = [&](int a, int b) {
    if (dims[b].first < dims[a].first) std::swap(dims[a], dims[b]);
  };
  order(0, 1), order(1, 2), order(0, 1);
  int64_t inside = extents.width;
  for (const auto& [stride, size] : dims) {
    if (size <= 1) continue;
    HL_CHECK(stride >= inside, "decay attention: ", name, " [", extents.batch, ", ",
             extents.seq_len, ", ", extents.heads, ", ", extents.width, "] with strides ",
             view.stride_b, ", ", view.stride_t, ", ", view.stride_h,
             " of b, t, h would be written twice at one address. Pass a contiguous tensor.");
    inside += (size - 1) * stride;
  }
}

inline void CheckForwardTensors(const DecayAttentionArgs& args) {
  if (args.num_chunks == 0) return;
  CheckRead("q", args.q);
  CheckRead("k", args.k);
  CheckRead("v", args.v);
  CheckWritten("out", args.out, {args.batch, args.seq_len, args.num_heads, args.head_dim_v});
}

inline void CheckGradientTensors(const DecayAttentionGradArgs& grads) {
  const DecayAttentionArgs& args = grads.forward;
  if (args.num_chunks == 0) return;
  const int64_t B = args.batch, T = args.seq_len;
  CheckRead("dout", grads.dout);
  CheckWritten("dq", grads.dq, {B, T, args.num_q_heads, args.head_dim_k});
  CheckWritten("dk", grads.dk, {B, T, args.num_k_heads, args.head_dim_k});
  CheckWritten("dv", grads.dv, {B, T, args.num_v_heads, args.head_dim_v});
  const int decays = IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  const bool per_token = IsPerToken(args.decay_kind);
  if (grads.dlog_decay.data != nullptr)
    CheckWritten("dlog_decay", grads.dlog_decay,
                 {per_token ? B : 1, per_token ? T : 1, args.num_decay_heads, decays});
  if (grads.dkey_scale.data != nullptr)
    CheckWritten("dkey_scale", grads.dkey_scale, {B, T, args.num_heads, 1});
  HL_CHECK(
      args.norm_kind == NormKind::kNone || (args.norm_denom != nullptr && args.out.data != nullptr),
      "decay attention: a normalised backward needs the forward's out and norm_denom");
}

inline void CheckSummary(const DecaySegmentArgs& args, bool reverse) {
  const DecayAttentionArgs& forward = args.forward;
  const bool normalised = forward.norm_kind != NormKind::kNone;
  HL_CHECK(args.state != nullptr && (!normalised || args.norm != nullptr),
           "decay attention: a summary without a buffer for its state",
           normalised ? " and its sums of keys" : "");
  HL_CHECK(!reverse || !normalised || forward.num_chunks == 0 ||
               (forward.norm_denom != nullptr && forward.out.data != nullptr),
           "decay attention: a normalised backward summary needs the forward's out and norm_denom");
}

// Checks that constant decays and their gradients are contiguous [Hd] or [Hd, K], as the CUDA
// kernels read and write them.
inline void CheckConstantDecay(DecayKind kind, const TensorView& view, int num_heads,
                               int head_dim_k) {
  const int64_t width = IsPerChannel(kind) ? head_dim_k : 1;
  HL_CHECK(view.data == nullptr || IsPerToken(kind) || num_heads == 1 || view.stride_h == width,
           "decay attention on CUDA: heads of a constant log_decay or its gradient ", view.stride_h,
           " elements apart. Use a stride of ", width, ".");
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
              " heads of q, k, v and log_decay for a state of ", H, ". Use divisors of ", H, ".");
  HL_CHECK_AS(ExitCode::kUsage,
              args.head_dim_k >= 1 && args.head_dim_k <= kMaxHeadDimK && args.head_dim_v >= 1 &&
                  args.head_dim_v <= kMaxHeadDimV,
              "decay attention step with head sizes ", args.head_dim_k, " and ", args.head_dim_v,
              ". Use K of 1 to ", kMaxHeadDimK, " and V of 1 to ", kMaxHeadDimV, ".");
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
      ". Use one of bf16, fp32", is_cuda ? "" : ", fp64", " for all.");
  HL_CHECK_AS(ExitCode::kUsage,
              (args.log_decay.data == nullptr || args.log_decay.dtype == wide) &&
                  (args.key_scale.data == nullptr || args.key_scale.dtype == wide),
              "decay attention step with log_decay of ", Name(args.log_decay.dtype),
              " and key_scale of ", Name(args.key_scale.dtype), " with q of ", Name(dtype),
              ". Use ", Name(wide), ".");
}

inline void CheckStep(const DecayAttentionStepArgs& args, bool is_cuda) {
  HL_CHECK(args.batch >= 0, "decay attention step of ", args.batch, " rows");
  CheckStepShape(args);
  CheckStepDTypes(args, is_cuda);
  if (args.batch == 0) return;  // without rows there is no data
  CheckRead("q", args.q);
  CheckRead("k", args.k);
  CheckRead("v", args.v);
  CheckWritten("out", args.out, {args.batch, 1, args.num_heads, args.head_dim_v});
  HL_CHECK(args.state != nullptr, "decay attention step without a state");
  HL_CHECK(args.norm_kind == NormKind::kNone || (args.norm != nullptr && args.norm_eps > 0),
           "decay attention step: a normaliser with ", args.norm == nullptr ? "no" : "a",
           " state and norm_eps ", args.norm_eps, ". Pass a state and a positive norm_eps.");
  HL_CHECK((args.decay_kind == DecayKind::kNone) == (args.log_decay.data == nullptr),
           "decay attention step: log_decay and its kind do not agree. Set both or neither.");
  if (is_cuda)
    CheckConstantDecay(args.decay_kind, args.log_decay, args.num_decay_heads, args.head_dim_k);
}

}  // namespace halflife::kernels
