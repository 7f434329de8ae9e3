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

HL_VECTORISED void ForwardRange(const float* gate, const float* up, float* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = gate[i] * Sigmoid(gate[i]) * up[i];
}

HL_VECTORISED void BackwardRange(const float* gate, const float* up, const float* dout,
                                 float* dgate, float* dup, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float sigmoid = Sigmoid(gate[i]);
    dgate[i] = dout[i] * up[i] * (sigmoid * (1.0f + gate[i] * (1.0f - sigmoid)));
    dup[i] = dout[i] * (gate[i] * sigmoid);
  }
}

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_in,
                            const at::Tensor& up_in) {
    const at::Tensor gate = gate_in.contiguous(), up = up_in.contiguous();
    at::Tensor out = at::empty_like(gate);
    const float* g = gate.const_data_ptr<float>();
    const float* u = up.const_data_ptr<float>();
    float* y = out.mutable_data_ptr<float>();
    at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      ForwardRange(g + begin, u + begin, y + begin, end - begin);
    });
    context->save_for_backward({gate, up});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dout = grads[0].contiguous();
    at::Tensor dgate = at::empty_like(saved[0]), dup = at::empty_like(saved[1]);
    const float* g = saved[0].const_data_ptr<float>();
    const float* u = saved[1].const_data_ptr<float>();
    const float* dy = dout.const_data_ptr<float>();
    float* dg = dgate.mutable_data_ptr<float>();
    float* du = dup.mutable_data_ptr<float>();
    at::parallel_for(0, dout.numel(), kGrain, [&](int64_t begin, int64_t end) {
      BackwardRange(g + begin, u + begin, dy + begin, dg + begin, du + begin, end - begin);
    });
    return {dgate, dup};
  }
};

}  // namespace

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  if (AllCpuFloat({gate, up})) return SwiGluFunction::apply(gate, up);
  const at::ScalarType compute = ComputeType(gate);
  return (at::silu(gate.to(compute)) * up.to(compute)).to(gate.scalar_type());
}

}  // namespace halflife::kernels
