#include <type_traits>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/scans/selective_scan/cpu/kernels.h"

namespace halflife::kernels::cpu {
namespace {

const ScanKernels& InUse() { return HL_FOR_INSTRUCTION_SET_IN_USE(kScanKernels); }

template <typename T, typename C>
void SumTokens(const ScanShape<T, C>& shape, const ScanGrads<T, C>& grads,
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

}  // namespace

void ScanSumTokens(const ScanShape<float, float>& shape, const ScanGrads<float, float>& grads,
                   const ScanPartials<float>& partials, int64_t begin, int64_t end) {
  SumTokens(shape, grads, partials, begin, end);
}
void ScanSumTokens(const ScanShape<Bf16, float>& shape, const ScanGrads<Bf16, float>& grads,
                   const ScanPartials<float>& partials, int64_t begin, int64_t end) {
  SumTokens(shape, grads, partials, begin, end);
}
void ScanSumTokens(const ScanShape<double, double>& shape, const ScanGrads<double, double>& grads,
                   const ScanPartials<double>& partials, int64_t begin, int64_t end) {
  SumTokens(shape, grads, partials, begin, end);
}

int64_t ScanScratchBytes(int64_t states, bool wide) { return InUse().scratch_bytes(states, wide); }

void ScanForward(const ScanShape<float, float>& shape, const ScanResults<float, float>& results,
                 int64_t item, void* scratch) {
  InUse().f32.forward(shape, results, item, scratch);
}
void ScanForward(const ScanShape<Bf16, float>& shape, const ScanResults<Bf16, float>& results,
                 int64_t item, void* scratch) {
  InUse().bf16.forward(shape, results, item, scratch);
}
void ScanForward(const ScanShape<double, double>& shape, const ScanResults<double, double>& results,
                 int64_t item, void* scratch) {
  InUse().f64.forward(shape, results, item, scratch);
}
void ScanBackward(const ScanShape<float, float>& shape, const ScanGrads<float, float>& grads,
                  const ScanPartials<float>& partials, int64_t item, void* scratch) {
  InUse().f32.backward(shape, grads, partials, item, scratch);
}
void ScanBackward(const ScanShape<Bf16, float>& shape, const ScanGrads<Bf16, float>& grads,
                  const ScanPartials<float>& partials, int64_t item, void* scratch) {
  InUse().bf16.backward(shape, grads, partials, item, scratch);
}
void ScanBackward(const ScanShape<double, double>& shape, const ScanGrads<double, double>& grads,
                  const ScanPartials<double>& partials, int64_t item, void* scratch) {
  InUse().f64.backward(shape, grads, partials, item, scratch);
}

}  // namespace halflife::kernels::cpu
