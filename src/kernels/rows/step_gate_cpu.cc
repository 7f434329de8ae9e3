#include "kernels/common/cpu/softplus.h"
#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/step_gate_args.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T>
HL_INLINE void StepGateForwardLoop(const StepGateRows<T>& rows, int64_t begin, int64_t end) {
  const int64_t dim = rows.dim;
  const float* __restrict bias = rows.form.bias;
  const float* __restrict a_log = rows.form.a_log;
  const float least = rows.form.least, most = rows.form.most;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = rows.x + row * rows.x_stride;
    float* __restrict out = rows.step + row * dim;
    float* __restrict log_decay = rows.log_decay + row * dim;
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) {
      const float step = SoftPlus(Widen(x[i]) + bias[i]);
      const float above = step < least ? least : step;
      const float limited = above > most ? most : above;
      out[i] = limited;
      log_decay[i] = -Exp(a_log[i]) * limited;
    }
  }
}

template <typename T>
HL_INLINE void StepGateBackwardLoop(const StepGateGradRows<T>& rows, int64_t begin, int64_t end,
                                    float* __restrict dbias, float* __restrict da_log) {
  const int64_t dim = rows.dim;
  const float* __restrict bias = rows.form.bias;
  const float* __restrict a_log = rows.form.a_log;
  const float least = rows.form.least, most = rows.form.most;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = rows.x + row * rows.x_stride;
    const float* __restrict dstep = rows.dstep + row * dim;
    const float* __restrict dlog_decay = rows.dlog_decay + row * dim;
    T* __restrict dx = rows.dx + row * rows.dx_stride;
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) {
      const float z = Widen(x[i]) + bias[i], step = SoftPlus(z), a = -Exp(a_log[i]);
      const float above = step < least ? least : step;
      const float limited = above > most ? most : above;
      const float slope = step < least || step > most ? 0.0f : Sigmoid(z);
      const float dz = (dstep[i] + a * dlog_decay[i]) * slope;
      dx[i] = Narrow<T>(dz);
      dbias[i] += dz;
      da_log[i] += dlog_decay[i] * a * limited;
    }
  }
}

}  // namespace

template <typename T>
void StepGateForward(const StepGateRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { StepGateForwardLoop(rows, begin, end); });
}
template <typename T>
void StepGateBackward(const StepGateGradRows<T>& rows, int64_t begin, int64_t end, float* sums) {
  RunVectorised(
      [&]() HL_LAMBDA_INLINE { StepGateBackwardLoop(rows, begin, end, sums, sums + rows.dim); });
}

template void StepGateForward(const StepGateRows<float>&, int64_t, int64_t);
template void StepGateForward(const StepGateRows<Bf16>&, int64_t, int64_t);
template void StepGateBackward(const StepGateGradRows<float>&, int64_t, int64_t, float*);
template void StepGateBackward(const StepGateGradRows<Bf16>&, int64_t, int64_t, float*);

}  // namespace halflife::kernels::cpu
