// Polynomial attention on the CPU: the division of work among threads. The scans are in scan.h,
// compiled once per instruction set.
//
// A work item is a group of heads of one sequence: one head, or several for long sequences, which
// advance together. In a backward it is one of the two scans. Results do not depend on the number
// of threads.
#include <algorithm>
#include <vector>

#include "kernels/common/cpu/head_groups.h"
#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/parallel.h"
#include "kernels/polynomial_attention/cpu/kernels.h"
#include "kernels/polynomial_attention/polynomial_attention_args.h"
#include "kernels/polynomial_attention/polynomial_attention_call_checks.h"

namespace halflife::kernels::cpu {
namespace {

using polynomial::Kernels;
using polynomial::Pass;
using polynomial::ScanItem;

constexpr const char* kKernel = "polynomial attention";

const Kernels& KernelsOfMachine() { return HL_FOR_INSTRUCTION_SET_IN_USE(polynomial::kKernels); }

void CheckChunks(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan) {
  const int used = args.num_sequences > 0 ? args.sequence_begin[args.num_sequences] : 0;
  for (int i = 0; i < used; ++i) {
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

int64_t ElementBytes(const PolynomialAttentionArgs& args) {
  return args.q.dtype == DType::kF64 ? 8 : 4;
}
int64_t Features(const PolynomialAttentionArgs& args) {
  return FeatureLayout(args.head_dim, args.weights).count;
}

// Returns the address of a head in the caller's states [num_sequences, H, F, V], or in norms if the
// width is 1.
template <typename Pointer>
Pointer At(const PolynomialAttentionArgs& args, Pointer states, int64_t state, int64_t width) {
  if (states == nullptr) return nullptr;
  auto* const base = static_cast<std::byte*>(const_cast<void*>(states));
  return base + state * Features(args) * width * ElementBytes(args);
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

// Runs the passes of every head of every sequence. make(state, pass, scratch) creates each work
// item.
template <typename Make>
void ScanHeads(const PolynomialAttentionGradArgs& grads, const PolynomialAttentionPlan& plan,
               const std::vector<Pass>& passes, const Make& make) {
  const PolynomialAttentionArgs& args = grads.forward;
  CheckChunks(args, plan);
  const Kernels& kernels = KernelsOfMachine();
  const int64_t num_passes = std::ssize(passes);
  const HeadGroups groups(
      {.num_heads = args.num_heads,
       .num_items = int64_t{1} * args.num_sequences * args.num_heads * num_passes,
       .kinds = static_cast<int>(num_passes)},
      plan.block_chunks, args.num_chunks > int64_t{1} * args.num_sequences * plan.block_chunks);
  const bool forward = passes[0] == Pass::kForward;
  const size_t scratch_bytes = kernels.scratch_bytes(args, plan, MostChunks(args), !forward);
  const auto norm_bytes = static_cast<size_t>(ElementBytes(args) * Features(args));
  const Carries carries(scratch_bytes, norm_bytes * static_cast<size_t>(args.head_dim_v),
                        norm_bytes);
  Parallel(
      kKernel, groups.count(), carries.bytes(groups.heads_per_group()),
      [&](int64_t group, void* scratch) {
        const Pass pass = passes[static_cast<size_t>(group % num_passes)];
        std::vector<ScanItem> items;
        for (int i = 0; i < groups.heads_per_group(); ++i)
          items.push_back(make(groups.Item(group, i) / num_passes, pass, scratch));
        std::vector<bool> live(items.size());  // whether the state of a head is not empty
        const bool descending = pass == Pass::kKeyGradient;
        for (const ChunkBlock& part : groups.Blocks(items[0].begin, items[0].end, descending)) {
          for (int i = 0; i < groups.heads_per_group(); ++i) {
            const auto head = static_cast<size_t>(i);
            ScanItem item = items[head];
            item.begin = part.begin;
            item.end = part.end;
            if (!part.first) {
              item.entry_state = live[head] ? carries.State(scratch, i) : nullptr;
              item.entry_norm = live[head] ? carries.Norm(scratch, i) : nullptr;
            }
            if (!part.last) {
              item.exit_state = carries.State(scratch, i);
              item.exit_norm = carries.Norm(scratch, i);
            }
            live[head] = kernels.scan(item, pass);
          }
        }
      });
}

void ScanForward(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
                 bool state_only) {
  CheckCall(args, plan, polynomial::kMaxChunkSize);
  PolynomialAttentionGradArgs call;
  call.forward = args;
  ScanHeads(call, plan, {Pass::kForward}, [&](int64_t state, Pass, void* scratch) {
    ScanItem item = ItemOf(call, plan, state, scratch);
    item.exit_state = At(args, args.final_state, state, args.head_dim_v);
    item.exit_norm = At(args, args.final_norm, state, 1);
    item.state_only = state_only;
    return item;
  });
}

void ScanBackward(const PolynomialAttentionGradArgs& grads, const PolynomialAttentionPlan& plan,
                  bool state_only) {
  CheckCall(grads, plan, polynomial::kMaxChunkSize);
  const PolynomialAttentionArgs& args = grads.forward;
  // This pass also computes the gradient of the initial state.
  std::vector<Pass> passes = {Pass::kKeyGradient};
  if (!state_only) passes.push_back(Pass::kQueryGradient);
  ScanHeads(grads, plan, passes, [&](int64_t state, Pass pass, void* scratch) {
    ScanItem item = ItemOf(grads, plan, state, scratch);
    if (pass == Pass::kQueryGradient) return item;
    item.entry_state = At(args, grads.dfinal_state, state, args.head_dim_v);
    item.entry_norm = At(args, grads.dfinal_norm, state, 1);
    item.exit_state = At(args, grads.dinitial_state, state, args.head_dim_v);
    item.exit_norm = At(args, grads.dinitial_norm, state, 1);
    item.state_only = state_only;
    return item;
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
