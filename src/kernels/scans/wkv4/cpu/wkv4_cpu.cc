#include "kernels/common/cpu/instruction_set.h"
#include "kernels/scans/wkv4/cpu/kernels.h"

namespace halflife::kernels::cpu {
namespace {

const WkvKernels& InUse() { return HL_FOR_INSTRUCTION_SET_IN_USE(kWkvKernels); }

}  // namespace

void WkvForward(const WkvShape<float, float>& shape, const WkvResults<float, float>& results,
                int64_t item) {
  InUse().f32.forward(shape, results, item);
}
void WkvForward(const WkvShape<Bf16, float>& shape, const WkvResults<Bf16, float>& results,
                int64_t item) {
  InUse().bf16.forward(shape, results, item);
}
void WkvForward(const WkvShape<double, double>& shape, const WkvResults<double, double>& results,
                int64_t item) {
  InUse().f64.forward(shape, results, item);
}
void WkvBackward(const WkvShape<float, float>& shape, const WkvGrads<float, float>& grads,
                 float* dlog_decay, float* dbonus, int64_t item) {
  InUse().f32.backward(shape, grads, dlog_decay, dbonus, item);
}
void WkvBackward(const WkvShape<Bf16, float>& shape, const WkvGrads<Bf16, float>& grads,
                 float* dlog_decay, float* dbonus, int64_t item) {
  InUse().bf16.backward(shape, grads, dlog_decay, dbonus, item);
}
void WkvBackward(const WkvShape<double, double>& shape, const WkvGrads<double, double>& grads,
                 double* dlog_decay, double* dbonus, int64_t item) {
  InUse().f64.backward(shape, grads, dlog_decay, dbonus, item);
}

}  // namespace halflife::kernels::cpu
