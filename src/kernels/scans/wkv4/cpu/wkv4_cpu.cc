#include "kernels/common/cpu/instruction_set.h"
#include "kernels/scans/wkv4/cpu/kernels.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T, typename C>
const WkvLoops<T, C>& LoopsInUse() {
  return std::get<WkvLoops<T, C>>(HL_FOR_INSTRUCTION_SET_IN_USE(kWkvKernels));
}

}  // namespace

template <typename T, typename C>
void WkvForward(const WkvShape<T, C>& shape, const WkvResults<T, C>& results, int64_t item) {
  LoopsInUse<T, C>().forward(shape, results, item);
}
template <typename T, typename C>
void WkvBackward(const WkvShape<T, C>& shape, const WkvGrads<T, C>& grads, C* dlog_decay, C* dbonus,
                 int64_t item) {
  LoopsInUse<T, C>().backward(shape, grads, dlog_decay, dbonus, item);
}

#define HL_WKV(T, C)                                                                 \
  template void WkvForward(const WkvShape<T, C>&, const WkvResults<T, C>&, int64_t); \
  template void WkvBackward(const WkvShape<T, C>&, const WkvGrads<T, C>&, C*, C*, int64_t);
HL_WKV(float, float)
HL_WKV(Bf16, float)
HL_WKV(double, double)
#undef HL_WKV

}  // namespace halflife::kernels::cpu
