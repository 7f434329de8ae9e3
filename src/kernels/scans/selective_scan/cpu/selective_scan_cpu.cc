#include <type_traits>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/scans/selective_scan/cpu/kernels.h"

namespace halflife::kernels::cpu {
namespace {

const ScanKernels& InUse() { return HL_FOR_INSTRUCTION_SET_IN_USE(kScanKernels); }

}  // namespace

template <typename T, typename C>
void ScanSumTokens(const ScanShape<T, C>& shape, const ScanGrads<T, C>& grads,
                   const ScanPartials<C>& partials, int64_t begin, int64_t end) {
  const int64_t states = shape.states, of_block = shape.batch * shape.seq_len * states;
  const int64_t blocks = ScanBlocks(shape.channels);
  const auto store = [&](const C* of_token, T* to) {
    C sums[kScanMaxStates];
    for (int64_t n = 0; n < states; ++n) sums[n] = of_token[n];
    for (int64_t block = 1; block < blocks; ++block)
      for (int64_t n = 0; n < states; ++n) sums[n] += of_token[block * of_block + n];
    for (int64_t n = 0; n < states; ++n) {
      if constexpr (std::is_same_v<T, C>) {
        to[n] = sums[n];
      } else {
        to[n] = Narrow<T>(sums[n]);
      }
    }
  };
  for (int64_t token = begin; token < end; ++token) {
    store(partials.db + token * states, grads.db + token * grads.token_stride);
    store(partials.dc + token * states, grads.dc + token * grads.token_stride);
  }
}

int64_t ScanScratchBytes(int64_t states, bool wide) { return InUse().scratch_bytes(states, wide); }

template <typename T, typename C>
void ScanForward(const ScanShape<T, C>& shape, const ScanResults<T, C>& results, int64_t item,
                 void* scratch) {
  std::get<ScanLoops<T, C>>(InUse().loops).forward(shape, results, item, scratch);
}
template <typename T, typename C>
void ScanBackward(const ScanShape<T, C>& shape, const ScanGrads<T, C>& grads,
                  const ScanPartials<C>& partials, int64_t item, void* scratch) {
  std::get<ScanLoops<T, C>>(InUse().loops).backward(shape, grads, partials, item, scratch);
}

#define HL_SCAN(T, C)                                                                          \
  template void ScanSumTokens(const ScanShape<T, C>&, const ScanGrads<T, C>&,                  \
                              const ScanPartials<C>&, int64_t, int64_t);                       \
  template void ScanForward(const ScanShape<T, C>&, const ScanResults<T, C>&, int64_t, void*); \
  template void ScanBackward(const ScanShape<T, C>&, const ScanGrads<T, C>&,                   \
                             const ScanPartials<C>&, int64_t, void*);
HL_SCAN(float, float)
HL_SCAN(Bf16, float)
HL_SCAN(double, double)
#undef HL_SCAN

}  // namespace halflife::kernels::cpu
