#include "kernels/cpu/instruction_set.h"
#include "kernels/selective_scan/cpu/kernels.h"

namespace halflife::kernels::cpu {
namespace {

const ScanKernels& InUse() {
  switch (InstructionSetInUse()) {
    case InstructionSet::kAvx512:
      return Avx512ScanKernels();
    case InstructionSet::kAvx2:
      return Avx2ScanKernels();
    case InstructionSet::kBaseline:
      break;
  }
  return BaselineScanKernels();
}

}  // namespace

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
