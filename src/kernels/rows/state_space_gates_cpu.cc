#include "kernels/common/cpu/softplus.h"
#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/state_space_gates_args.h"

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

template <bool kGated, typename T>
HL_INLINE void SkipGateForwardLoop(const SkipGateRows<T>& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < rows.num_heads; ++head) {
      const int64_t column = head * rows.head_dim, at = row * rows.dim() + column;
      const T* __restrict y = rows.y + at;
      const T* __restrict x = rows.x + row * rows.x_stride + column;
      const T* __restrict gate = kGated ? rows.gate + row * rows.gate_stride + column : y;
      T* __restrict out = rows.out + at;
      const float skip = rows.skip[head];
#pragma omp simd
      for (int64_t i = 0; i < rows.head_dim; ++i) {
        float sum = Widen(y[i]) + skip * Widen(x[i]);
        if constexpr (kGated) sum *= Widen(gate[i]) * Sigmoid(Widen(gate[i]));
        out[i] = Narrow<T>(sum);
      }
    }
  }
}

template <bool kGated, typename T>
HL_INLINE void SkipGateBackwardLoop(const SkipGateGradRows<T>& rows, int64_t begin, int64_t end,
                                    float* dskip) {
  const SkipGateRows<T>& in = rows.forward;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < in.num_heads; ++head) {
      const int64_t column = head * in.head_dim, at = row * in.dim() + column;
      const T* __restrict x = in.x + row * in.x_stride + column;
      const T* __restrict y = in.y + at;
      const T* __restrict gate = kGated ? in.gate + row * in.gate_stride + column : y;
      const T* __restrict dout = rows.dout + at;
      T* __restrict dy = rows.dy + at;
      T* __restrict dx = rows.dx + at;
      T* __restrict dgate = kGated ? rows.dgate + row * rows.dgate_stride + column : nullptr;
      const float skip = in.skip[head];
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < in.head_dim; ++i) {
        float d = Widen(dout[i]);
        const float value = Widen(x[i]);
        if constexpr (kGated) {
          const float z = Widen(gate[i]), sigmoid = Sigmoid(z);
          const float slope = sigmoid * (1.0f + z * (1.0f - sigmoid));
          dgate[i] = Narrow<T>(d * (Widen(y[i]) + skip * value) * slope);
          d *= z * sigmoid;
        }
        dy[i] = Narrow<T>(d);
        dx[i] = Narrow<T>(skip * d);
        sum += d * value;
      }
      dskip[head] += sum;
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

template <typename T>
void SkipGateForward(const SkipGateRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    rows.gate != nullptr ? SkipGateForwardLoop<true>(rows, begin, end)
                         : SkipGateForwardLoop<false>(rows, begin, end);
  });
}
template <typename T>
void SkipGateBackward(const SkipGateGradRows<T>& rows, int64_t begin, int64_t end, float* dskip) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    rows.forward.gate != nullptr ? SkipGateBackwardLoop<true>(rows, begin, end, dskip)
                                 : SkipGateBackwardLoop<false>(rows, begin, end, dskip);
  });
}

template void StepGateForward(const StepGateRows<float>&, int64_t, int64_t);
template void StepGateForward(const StepGateRows<Bf16>&, int64_t, int64_t);
template void StepGateBackward(const StepGateGradRows<float>&, int64_t, int64_t, float*);
template void StepGateBackward(const StepGateGradRows<Bf16>&, int64_t, int64_t, float*);
template void SkipGateForward(const SkipGateRows<float>&, int64_t, int64_t);
template void SkipGateForward(const SkipGateRows<Bf16>&, int64_t, int64_t);
template void SkipGateBackward(const SkipGateGradRows<float>&, int64_t, int64_t, float*);
template void SkipGateBackward(const SkipGateGradRows<Bf16>&, int64_t, int64_t, float*);

}  // namespace halflife::kernels::cpu
