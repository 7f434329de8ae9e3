#include <algorithm>

#include "core/error.h"
#include "kernels/common/cpu/instruction_set.h"
#include "kernels/focus_pool/cpu/kernels.h"

namespace halflife::kernels::cpu {
namespace {

const AllFocusKernels& KernelsInUse() { return HL_FOR_INSTRUCTION_SET_IN_USE(kFocusKernels); }

// Groups the pairs (run, head) of the same run.
template <typename T, typename Body>
void ForPieces(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results, int64_t begin,
               int64_t end, const Body& body) {
  int64_t longest = 0;
  for (int64_t i = 0; i < shape.num_runs; ++i) longest = std::max(longest, shape.runs[i].length);
  FocusScratch<T> scratch(shape, std::min(shape.num_heads, end - begin), longest);
  while (begin < end) {
    const int64_t run = begin / shape.num_heads, first_of_run = run * shape.num_heads;
    const int64_t stop = std::min(end, first_of_run + shape.num_heads);
    body(FocusItem<T>{.shape = shape,
                      .results = results,
                      .run = shape.runs[run],
                      .first_head = begin - first_of_run,
                      .end_head = stop - first_of_run,
                      .scratch = scratch});
    begin = stop;
  }
}

}  // namespace

template <typename T>
void FocusPoolForward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                      int64_t begin, int64_t end) {
  const auto kernels = std::get<FocusKernels<T>>(KernelsInUse());
  ForPieces(shape, results, begin, end, [&](const FocusItem<T>& item) { kernels.forward(item); });
}

template <typename T>
void FocusPoolBackward(const FocusPoolShape<T>& shape, const FocusPoolResults<T>& results,
                       const FocusPoolGrads<T>& grads, int64_t begin, int64_t end) {
  const auto kernels = std::get<FocusKernels<T>>(KernelsInUse());
  ForPieces(shape, results, begin, end,
            [&](const FocusItem<T>& item) { kernels.backward(item, grads); });
}

#define HL_FOCUS_POOL(T)                                                                        \
  template void FocusPoolForward(const FocusPoolShape<T>&, const FocusPoolResults<T>&, int64_t, \
                                 int64_t);                                                      \
  template void FocusPoolBackward(const FocusPoolShape<T>&, const FocusPoolResults<T>&,         \
                                  const FocusPoolGrads<T>&, int64_t, int64_t);
HL_FOCUS_POOL(float)
HL_FOCUS_POOL(Bf16)
HL_FOCUS_POOL(double)
#undef HL_FOCUS_POOL

}  // namespace halflife::kernels::cpu
