#include "kernels/swiglu/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.h"
#include "kernels/swiglu/args.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 1 << 15;

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_in,
                            const at::Tensor& up_in) {
    const at::Tensor gate = gate_in.contiguous(), up = up_in.contiguous();
    at::Tensor out = at::empty_like(gate);
    WithStorage(gate, [&]<typename T>() {
      const SwiGluArgs<T> args = {.gate = Elements<T>(gate),
                                  .up = Elements<T>(up),
                                  .out = MutableElements<T>(out),
                                  .count = gate.numel()};
      RunOn(
          gate,
          [&] {
            at::parallel_for(0, args.count, kGrain, [&](int64_t begin, int64_t end) {
              cpu::SwiGluForward(args, begin, end);
            });
          },
          [&](auto stream) { cuda::SwiGluForward(args, stream); });
    });
    context->save_for_backward({gate, up});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dout = grads[0].contiguous();
    at::Tensor dgate = at::empty_like(saved[0]), dup = at::empty_like(saved[1]);
    WithStorage(dout, [&]<typename T>() {
      const SwiGluGradArgs<T> args = {.gate = Elements<T>(saved[0]),
                                      .up = Elements<T>(saved[1]),
                                      .dout = Elements<T>(dout),
                                      .dgate = MutableElements<T>(dgate),
                                      .dup = MutableElements<T>(dup),
                                      .count = dout.numel()};
      RunOn(
          dout,
          [&] {
            at::parallel_for(0, args.count, kGrain, [&](int64_t begin, int64_t end) {
              cpu::SwiGluBackward(args, begin, end);
            });
          },
          [&](auto stream) { cuda::SwiGluBackward(args, stream); });
    });
    return {dgate, dup};
  }
};

}  // namespace

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  CheckDTypes("SwiGlu", {gate, up});
  HL_CHECK(gate.defined() && IsLike(gate, up), "SwiGlu of gate ", Describe(gate), " and up ",
           Describe(up), "; one shape, dtype and device for both would work");
  if (IsFused(gate)) return SwiGluFunction::apply(gate, up);
  const at::ScalarType compute = ComputeType(gate);
  return (at::silu(gate.to(compute)) * up.to(compute)).to(gate.scalar_type());
}

}  // namespace halflife::kernels
