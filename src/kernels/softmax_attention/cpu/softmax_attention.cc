// Softmax attention on the CPU: the division of work among threads. The kernels on tiles are in
// forward.h, backward.h and single_query.h, compiled once per instruction set.
#include <omp.h>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/parallel.h"
#include "kernels/softmax_attention/cpu/kernels.h"
#include "kernels/softmax_attention/softmax_attention_args.h"

namespace halflife::kernels::cpu {
namespace {

using softmax_attention::Item;
using softmax_attention::Kernels;

constexpr const char* kKernel = "softmax attention";

const Kernels& KernelsOfMachine() {
  return HL_FOR_INSTRUCTION_SET_IN_USE(softmax_attention::kKernels);
}

int NumQueryTiles(const SoftmaxAttentionArgs& args) {
  return (args.num_queries + kAttentionTile - 1) / kAttentionTile;
}

// Returns the number of parts that the queries of a head are divided into. It is the smallest
// number that keeps all threads busy, because each part transposes the keys that it uses. Results
// do not depend on it.
int NumPieces(const SoftmaxAttentionArgs& args) {
  const int64_t heads = int64_t{1} * args.batch * args.num_heads;
  const int64_t threads = std::max(1, omp_get_max_threads());
  if (heads >= 2 * threads) return 1;
  return static_cast<int>(std::min<int64_t>(NumQueryTiles(args), 4 * threads / heads));
}

}  // namespace

void Forward(const SoftmaxAttentionArgs& args) {
  if (args.batch == 0 || args.num_queries == 0) return;
  const Kernels& kernels = KernelsOfMachine();
  const int pieces = NumPieces(args), tiles = NumQueryTiles(args);
  const int64_t items = int64_t{1} * args.batch * args.num_heads * pieces;
  Parallel(kKernel, items, kernels.forward_scratch_bytes(args), [&](int64_t i, void* scratch) {
    const auto piece = static_cast<int>(i % pieces);
    const int64_t head = i / pieces;
    kernels.forward(args, {.row = static_cast<int>(head / args.num_heads),
                           .head = static_cast<int>(head % args.num_heads),
                           .first_tile = tiles * piece / pieces,
                           .end_tile = tiles * (piece + 1) / pieces,
                           .scratch = scratch});
  });
}

void Backward(const SoftmaxAttentionGradArgs& args) {
  const SoftmaxAttentionArgs& forward = args.forward;
  if (forward.batch == 0) return;
  const Kernels& kernels = KernelsOfMachine();
  const int64_t items = int64_t{1} * forward.batch * forward.num_kv_heads;
  Parallel(kKernel, items, kernels.backward_scratch_bytes(args), [&](int64_t i, void* scratch) {
    kernels.backward(args, {.row = static_cast<int>(i / forward.num_kv_heads),
                            .head = static_cast<int>(i % forward.num_kv_heads),
                            .first_tile = 0,
                            .end_tile = NumQueryTiles(forward),
                            .scratch = scratch});
  });
}

}  // namespace halflife::kernels::cpu
