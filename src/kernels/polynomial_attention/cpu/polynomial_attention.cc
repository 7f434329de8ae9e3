// Polynomial attention on the CPU: who scans which sequence. The scans are in scan.h, compiled once
// per instruction set.
//
// A thread takes one head of one sequence; of a backward, one of its two scans. Nothing depends on
// the number of threads.
#include <algorithm>

#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/polynomial_attention/args.h"
#include "kernels/polynomial_attention/call_checks.h"
#include "kernels/polynomial_attention/cpu/kernels.h"

namespace halflife::kernels::cpu {
namespace {

using polynomial::Kernels;
using polynomial::Pass;
using polynomial::ScanItem;

constexpr const char* kKernel = "polynomial attention";

const Kernels& KernelsOfMachine() {
  switch (InstructionSetInUse()) {
    case InstructionSet::kAvx512:
      return polynomial::Avx512Kernels();
    case InstructionSet::kAvx2:
      return polynomial::Avx2Kernels();
    case InstructionSet::kBaseline:
      break;
  }
  return polynomial::BaselineKernels();
}

void CheckChunks(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan) {
  for (int i = 0; i < args.num_chunks; ++i) {
    const ChunkEntry& chunk = args.chunks[i];
    HL_CHECK(chunk.length >= 1 && chunk.length <= plan.chunk_size && chunk.row >= 0 &&
                 chunk.row < args.batch && chunk.token >= 0 &&
                 chunk.token + chunk.length <= args.seq_len,
             "polynomial attention: chunk ", i, " is row ", chunk.row, ", tokens ", chunk.token,
             " + ", chunk.length, ", but the batch is [", args.batch, ", ", args.seq_len,
             "] in chunks of ", plan.chunk_size);
  }
}

int MostChunks(const PolynomialAttentionArgs& args) {
  int most = 1;
  for (int n = 0; n < args.num_sequences; ++n)
    most = std::max(most, args.sequence_begin[n + 1] - args.sequence_begin[n]);
  return most;
}

// The caller's states [num_sequences, H, F, V], or norms with a width of 1, at a head.
template <typename Pointer>
Pointer At(const PolynomialAttentionArgs& args, Pointer states, int64_t state, int64_t width) {
  if (states == nullptr) return nullptr;
  const int64_t element = args.q.dtype == DType::kF64 ? 8 : 4;
  const int64_t rows = FeatureLayout(args.head_dim, args.weights).count;
  auto* const base = static_cast<std::byte*>(const_cast<void*>(states));
  return base + state * rows * width * element;
}

ScanItem ItemOf(const PolynomialAttentionGradArgs& grads, const PolynomialAttentionPlan& plan,
                int64_t state, void* scratch) {
  const PolynomialAttentionArgs& args = grads.forward;
  const auto sequence = state / args.num_heads;
  return {.grads = &grads,
          .plan = &plan,
          .head = static_cast<int>(state % args.num_heads),
          .begin = args.sequence_begin[sequence],
          .end = args.sequence_begin[sequence + 1],
          .entry_state = At(args, args.initial_state, state, args.head_dim_v),
          .entry_norm = At(args, args.initial_norm, state, 1),
          .scratch = scratch};
}

void ScanForward(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
                 bool state_only) {
  CheckCall(args, plan, polynomial::kMaxChunkSize);
  CheckChunks(args, plan);
  const Kernels& kernels = KernelsOfMachine();
  PolynomialAttentionGradArgs call;
  call.forward = args;
  const size_t scratch_bytes = kernels.scratch_bytes(args, plan, MostChunks(args), false);
  const int64_t states = int64_t{1} * args.num_sequences * args.num_heads;
  Parallel(kKernel, states, scratch_bytes, [&](int64_t i, void* scratch) {
    ScanItem item = ItemOf(call, plan, i, scratch);
    item.exit_state = At(args, args.final_state, i, args.head_dim_v);
    item.exit_norm = At(args, args.final_norm, i, 1);
    item.state_only = state_only;
    kernels.scan(item, Pass::kForward);
  });
}

void ScanBackward(const PolynomialAttentionGradArgs& grads, const PolynomialAttentionPlan& plan,
                  bool state_only) {
  CheckCall(grads, plan, polynomial::kMaxChunkSize);
  const PolynomialAttentionArgs& args = grads.forward;
  CheckChunks(args, plan);
  const Kernels& kernels = KernelsOfMachine();
  const size_t scratch_bytes = kernels.scratch_bytes(args, plan, MostChunks(args), true);
  const int64_t states = int64_t{1} * args.num_sequences * args.num_heads;
  const int passes = state_only ? 1 : 2;  // the key gradient's builds the initial state's
  Parallel(kKernel, passes * states, scratch_bytes, [&](int64_t i, void* scratch) {
    const int64_t state = i / passes;
    ScanItem item = ItemOf(grads, plan, state, scratch);
    if (i % passes == 1) return kernels.scan(item, Pass::kQueryGradient);
    item.entry_state = At(args, grads.dfinal_state, state, args.head_dim_v);
    item.entry_norm = At(args, grads.dfinal_norm, state, 1);
    item.exit_state = At(args, grads.dinitial_state, state, args.head_dim_v);
    item.exit_norm = At(args, grads.dinitial_norm, state, 1);
    item.state_only = state_only;
    kernels.scan(item, Pass::kKeyGradient);
  });
}

}  // namespace

void Forward(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan) {
  ScanForward(args, plan, /*state_only=*/false);
}
void Summarise(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan) {
  ScanForward(args, plan, /*state_only=*/true);
}
void Backward(const PolynomialAttentionGradArgs& grads, const PolynomialAttentionPlan& plan) {
  ScanBackward(grads, plan, /*state_only=*/false);
}
void BackwardSummarise(const PolynomialAttentionGradArgs& grads,
                       const PolynomialAttentionPlan& plan) {
  ScanBackward(grads, plan, /*state_only=*/true);
}

void Step(const PolynomialAttentionStepArgs& args) {
  CheckStep(args, /*is_cuda=*/false);
  const Kernels& kernels = KernelsOfMachine();
  Parallel(kKernel, int64_t{1} * args.batch * args.num_heads, 0, [&](int64_t i, void*) {
    kernels.step(args, static_cast<int>(i / args.num_heads), static_cast<int>(i % args.num_heads));
  });
}

}  // namespace halflife::kernels::cpu
