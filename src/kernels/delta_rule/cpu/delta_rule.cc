// The delta rule on the CPU: the division of work among threads, and the sums of gradients over the
// value heads that share a head. The scans are compiled once per instruction set
// (delta_rule_isa.cc).
//
// A work item is one value head of one sequence. The results do not depend on the number of
// threads: the gradients of shared heads are kept apart and summed in the order of the value heads.
#include <algorithm>

#include "core/bfloat16.h"
#include "core/error.h"
#include "kernels/common/cpu/parallel.h"
#include "kernels/delta_rule/cpu/kernels.h"
#include "kernels/delta_rule/delta_rule_args.h"
#include "kernels/delta_rule/delta_rule_call_checks.h"

namespace halflife::kernels::cpu {
namespace {

using delta::Kernels;
using delta::ReverseItem;
using delta::ScanItem;

constexpr const char* kDeltaRule = "delta rule";

const Kernels& DeltaKernels() { return HL_FOR_INSTRUCTION_SET_IN_USE(delta::kKernels); }

void CheckChunks(const DeltaRuleArgs& args) {
  const int used = args.num_sequences > 0 ? args.sequence_begin[args.num_sequences] : 0;
  for (int i = 0; i < used; ++i) {
    const ChunkEntry& chunk = args.chunks[i];
    HL_CHECK(chunk.length >= 1 && chunk.length <= kDeltaChunkSize && chunk.row >= 0 &&
                 chunk.row < args.batch && chunk.token >= 0 &&
                 chunk.token + chunk.length <= args.seq_len,
             "delta rule: chunk ", i, " is row ", chunk.row, ", tokens ", chunk.token, " + ",
             chunk.length, ", but the batch is [", args.batch, ", ", args.seq_len,
             "] and a chunk has at most ", kDeltaChunkSize,
             " tokens. Build the table with MakeChunkTable.");
  }
}

int64_t NumStates(const DeltaRuleArgs& args) {
  return int64_t{1} * args.num_sequences * args.num_value_heads;
}

// Returns the address of a matrix [K, width] in a caller's [num_sequences, HV, K, width].
std::byte* StateAt(const DeltaRuleArgs& args, const void* states, int64_t state, int width) {
  if (states == nullptr) return nullptr;
  return static_cast<std::byte*>(const_cast<void*>(states)) +
         state * args.head_dim_k * width * static_cast<int64_t>(DeltaComputeBytes(args));
}

ScanItem MakeItem(const DeltaRuleArgs& args, int64_t state, void* scratch) {
  const int sequence = static_cast<int>(state / args.num_value_heads);
  const int begin = args.sequence_begin[sequence];
  return {.args = &args,
          .sequence = sequence,
          .head = static_cast<int>(state % args.num_value_heads),
          .first_chunk = begin,
          .begin = begin,
          .end = args.sequence_begin[sequence + 1],
          .v = args.v,
          .values = args.head_dim_v,
          .scratch = scratch};
}

// ---- gradients of shared heads ----

// Returns a contiguous [B, T, HV, K] in the workspace, the first or the second one.
TensorView PartialGradient(const DeltaRuleArgs& args, int index) {
  TensorView view;
  view.dtype = DeltaComputeType(args);
  view.stride_h = args.head_dim_k;
  view.stride_t = view.stride_h * args.num_value_heads;
  view.stride_b = view.stride_t * args.seq_len;
  view.data = static_cast<std::byte*>(args.workspace) +
              index * args.batch * view.stride_b * static_cast<int64_t>(DeltaComputeBytes(args));
  return view;
}

template <typename T>
T* RowAt(const TensorView& view, int64_t b, int64_t t, int64_t h) {
  return static_cast<T*>(view.data) + b * view.stride_b + t * view.stride_t + h * view.stride_h;
}

template <typename T>
void SumValueHeads(const DeltaRuleArgs& args, const TensorView& partial, const TensorView& sum) {
  const int per_head = args.num_value_heads / args.num_heads;
  const int64_t num_tokens = int64_t{1} * args.batch * args.seq_len;
#pragma omp parallel for schedule(static)
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t b = token / args.seq_len, t = token % args.seq_len;
    for (int head = 0; head < args.num_heads; ++head) {
      T sums[kDeltaMaxHeadDimK] = {};
      for (int i = 0; i < per_head; ++i) {
        const T* row = RowAt<T>(partial, b, t, int64_t{1} * head * per_head + i);
        for (int c = 0; c < args.head_dim_k; ++c) sums[c] += row[c];
      }
      if (sum.dtype == DType::kBF16) {
        auto* target = RowAt<Bf16>(sum, b, t, head);
        for (int c = 0; c < args.head_dim_k; ++c)
          target[c] = RoundToBf16(static_cast<float>(sums[c]));
      } else {
        std::copy_n(sums, args.head_dim_k, RowAt<T>(sum, b, t, head));
      }
    }
  }
}

// Sets each matrix of [num_sequences, HV, K, K] to the identity.
template <typename T>
void SetIdentities(const DeltaRuleArgs& args, void* matrices) {
  const int64_t K = args.head_dim_k;
  auto* values = static_cast<T*>(matrices);
  std::fill_n(values, NumStates(args) * K * K, T(0));
  for (int64_t i = 0; i < NumStates(args) * K; ++i) values[i * K + i % K] = 1;
}

}  // namespace

void DeltaRuleForward(const DeltaRuleArgs& args) {
  CheckDeltaForward(args);
  CheckChunks(args);
  const Kernels& kernels = DeltaKernels();
  const size_t scratch_bytes = kernels.scratch_bytes(args, args.head_dim_v, /*backward=*/false);
  Parallel(kDeltaRule, NumStates(args), scratch_bytes, [&](int64_t state, void* scratch) {
    ScanItem item = MakeItem(args, state, scratch);
    item.entry_state = StateAt(args, args.initial_state, state, args.head_dim_v);
    item.exit_state = StateAt(args, args.final_state, state, args.head_dim_v);
    kernels.forward(item);
  });
}

void DeltaRuleBackward(const DeltaRuleGradArgs& grads) {
  CheckDeltaBackward(grads);
  const DeltaRuleArgs& args = grads.forward;
  CheckChunks(args);
  const Kernels& kernels = DeltaKernels();
  const bool shared = args.num_heads < args.num_value_heads;
  const TensorView dq = shared ? PartialGradient(args, 0) : grads.dq;
  const TensorView dk = shared ? PartialGradient(args, 1) : grads.dk;
  const size_t scratch_bytes = kernels.scratch_bytes(args, args.head_dim_v, /*backward=*/true);
  Parallel(kDeltaRule, NumStates(args), scratch_bytes, [&](int64_t state, void* scratch) {
    ReverseItem item = {.scan = MakeItem(args, state, scratch),
                        .dout = grads.dout,
                        .dq = dq,
                        .dk = dk,
                        .dv = grads.dv,
                        .dlog_decay = grads.dlog_decay,
                        .dbeta = grads.dbeta};
    item.scan.entry_state = StateAt(args, grads.dfinal_state, state, args.head_dim_v);
    item.scan.exit_state = StateAt(args, grads.dinitial_state, state, args.head_dim_v);
    kernels.backward(item);
  });
  if (!shared || args.num_chunks == 0) return;
  const auto sum = DeltaComputeBytes(args) == 8 ? SumValueHeads<double> : SumValueHeads<float>;
  sum(args, dq, grads.dq);
  sum(args, dk, grads.dk);
}

void DeltaRuleStep(const DeltaRuleStepArgs& args) {
  CheckDeltaStep(args);
  const Kernels& kernels = DeltaKernels();
  Parallel(kDeltaRule, int64_t{1} * args.batch * args.num_value_heads, 0, [&](int64_t i, void*) {
    kernels.step(args, static_cast<int>(i / args.num_value_heads),
                 static_cast<int>(i % args.num_value_heads));
  });
}

// Computes M and N. M is the state of a scan that starts from the identity and has no values: a
// chunk maps each column of M as it maps a column of the state.
void DeltaRuleSummarise(const DeltaSegmentArgs& segment) {
  CheckDeltaSegment(segment, /*reverse=*/false);
  const DeltaRuleArgs& args = segment.forward;
  CheckChunks(args);
  const Kernels& kernels = DeltaKernels();
  const int K = args.head_dim_k, V = args.head_dim_v;
  if (segment.transition != nullptr) {
    DeltaComputeBytes(args) == 8 ? SetIdentities<double>(args, segment.transition)
                                 : SetIdentities<float>(args, segment.transition);
    const size_t scratch_bytes = kernels.scratch_bytes(args, K, /*backward=*/false);
    Parallel(kDeltaRule, NumStates(args), scratch_bytes, [&](int64_t state, void* scratch) {
      ScanItem item = MakeItem(args, state, scratch);
      item.v = {};
      item.values = K;
      item.entry_state = item.exit_state = StateAt(args, segment.transition, state, K);
      kernels.state(item);
    });
  }
  if (segment.state == nullptr) return;
  const size_t scratch_bytes = kernels.scratch_bytes(args, V, /*backward=*/false);
  Parallel(kDeltaRule, NumStates(args), scratch_bytes, [&](int64_t state, void* scratch) {
    ScanItem item = MakeItem(args, state, scratch);
    item.exit_state = StateAt(args, segment.state, state, V);
    kernels.state(item);
  });
}

void DeltaRuleBackwardSummarise(const DeltaSegmentArgs& segment) {
  CheckDeltaSegment(segment, /*reverse=*/true);
  const DeltaRuleArgs& args = segment.forward;
  CheckChunks(args);
  const Kernels& kernels = DeltaKernels();
  const size_t scratch_bytes = kernels.scratch_bytes(args, args.head_dim_v, /*backward=*/true);
  Parallel(kDeltaRule, NumStates(args), scratch_bytes, [&](int64_t state, void* scratch) {
    ReverseItem item = {.scan = MakeItem(args, state, scratch), .dout = segment.dout};
    item.scan.exit_state = StateAt(args, segment.adjoint, state, args.head_dim_v);
    kernels.adjoint(item);
  });
}

}  // namespace halflife::kernels::cpu
