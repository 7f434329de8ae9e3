#include "kernels/swiglu/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cpu_math.h"
#include "kernels/dispatch.h"

namespace halflife::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 1 << 15;

template <typename T>
struct Forward {
  const T* gate;
  const T* up;
  T* out;
};
template <typename T>
struct Backward {
  const T* gate;
  const T* up;
  const T* dout;
  T* dgate;
  T* dup;
};

template <typename T>
HL_INLINE void ForwardLoop(const Forward<T>& args, int64_t begin, int64_t end) {
  const T* __restrict gate = args.gate;
  const T* __restrict up = args.up;
  T* __restrict out = args.out;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = Widen(gate[i]);
    out[i] = Narrow<T>(g * Sigmoid(g) * Widen(up[i]));
  }
}
HL_VECTORISED void ForwardRange(const Forward<float>& args, int64_t begin, int64_t end) {
  ForwardLoop(args, begin, end);
}
HL_VECTORISED void ForwardRange(const Forward<Bf16>& args, int64_t begin, int64_t end) {
  ForwardLoop(args, begin, end);
}

template <typename T>
HL_INLINE void BackwardLoop(const Backward<T>& args, int64_t begin, int64_t end) {
  const T* __restrict gate = args.gate;
  const T* __restrict up = args.up;
  const T* __restrict dout = args.dout;
  T* __restrict dgate = args.dgate;
  T* __restrict dup = args.dup;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = Widen(gate[i]), dy = Widen(dout[i]), sigmoid = Sigmoid(g);
    dgate[i] = Narrow<T>(dy * Widen(up[i]) * (sigmoid * (1.0f + g * (1.0f - sigmoid))));
    dup[i] = Narrow<T>(dy * (g * sigmoid));
  }
}
HL_VECTORISED void BackwardRange(const Backward<float>& args, int64_t begin, int64_t end) {
  BackwardLoop(args, begin, end);
}
HL_VECTORISED void BackwardRange(const Backward<Bf16>& args, int64_t begin, int64_t end) {
  BackwardLoop(args, begin, end);
}

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_in,
                            const at::Tensor& up_in) {
    const at::Tensor gate = gate_in.contiguous(), up = up_in.contiguous();
    at::Tensor out = at::empty_like(gate);
    WithStorage(gate, [&]<typename T>() {
      const Forward<T> args = {Elements<T>(gate), Elements<T>(up), MutableElements<T>(out)};
      at::parallel_for(0, gate.numel(), kGrain,
                       [&](int64_t begin, int64_t end) { ForwardRange(args, begin, end); });
    });
    context->save_for_backward({gate, up});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dout = grads[0].contiguous();
    at::Tensor dgate = at::empty_like(saved[0]), dup = at::empty_like(saved[1]);
    WithStorage(dout, [&]<typename T>() {
      const Backward<T> args = {.gate = Elements<T>(saved[0]),
                                .up = Elements<T>(saved[1]),
                                .dout = Elements<T>(dout),
                                .dgate = MutableElements<T>(dgate),
                                .dup = MutableElements<T>(dup)};
      at::parallel_for(0, dout.numel(), kGrain,
                       [&](int64_t begin, int64_t end) { BackwardRange(args, begin, end); });
    });
    return {dgate, dup};
  }
};

}  // namespace

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  if (SameCpuStorage(gate, up)) return SwiGluFunction::apply(gate, up);
  const at::ScalarType compute = ComputeType(gate);
  return (at::silu(gate.to(compute)) * up.to(compute)).to(gate.scalar_type());
}

}  // namespace halflife::kernels
