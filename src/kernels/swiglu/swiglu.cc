#include "kernels/swiglu/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>

#include "core/error.h"
#include "kernels/swiglu/args.h"
#include "kernels/torch/autograd.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

constexpr int64_t kGrain = 1 << 15;

at::Tensor ForwardFused(const at::Tensor& gate, const at::Tensor& up) {
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
  return out;
}

Tensors BackwardFused(const BackwardCall& call) {
  const at::Tensor &gate = call.saved[0], &up = call.saved[1], dout = call.grads[0].contiguous();
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
  WithStorage(dout, [&]<typename T>() {
    const SwiGluGradArgs<T> args = {.gate = Elements<T>(gate),
                                    .up = Elements<T>(up),
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

at::Tensor FusedSwiGlu(const at::Tensor& gate_in, const at::Tensor& up_in) {
  const auto forward = [&]() -> Forwarded {
    const at::Tensor gate = gate_in.contiguous(), up = up_in.contiguous();
    return {.outputs = {ForwardFused(gate, up)}, .saved = {gate, up}, .backward = BackwardFused};
  };
  return Apply({.name = "SwiGlu", .inputs = {gate_in, up_in}, .forward = forward})[0];
}

}  // namespace

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  CheckDTypes("SwiGlu", {gate, up});
  HL_CHECK(gate.defined() && IsLike(gate, up), "SwiGlu of gate ", Describe(gate), " and up ",
           Describe(up), "; one shape, dtype and device for both would work");
  if (IsFused(gate)) return FusedSwiGlu(gate, up);
  const at::ScalarType compute = ComputeType(gate);
  return (at::silu(gate.to(compute)) * up.to(compute)).to(gate.scalar_type());
}

}  // namespace halflife::kernels
