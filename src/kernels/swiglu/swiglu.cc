#include "kernels/swiglu/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <array>

#include "core/error.h"
#include "kernels/swiglu/args.h"
#include "kernels/torch/autograd.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/side_by_side.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

constexpr int64_t kGrain = 1 << 15;

// gate and up as the kernels take them: as they lie, or copies.
struct Operands {
  at::Tensor gate, up;
  int64_t width = 0, gate_stride = 0, up_stride = 0;
};

Operands OperandsOf(const at::Tensor& gate, const at::Tensor& up) {
  const bool dense = gate.is_contiguous() && up.is_contiguous();
  if (!dense && gate.dim() >= 2 && gate.size(-1) % kSwiGluColumns == 0) {
    const auto gate_stride = RowStride(gate), up_stride = RowStride(up);
    if (gate_stride.has_value() && up_stride.has_value())
      return {gate, up, gate.size(-1), *gate_stride, *up_stride};
  }
  return {gate.contiguous(), up.contiguous()};
}

at::Tensor ProductFused(const Operands& in, GateMap map) {
  const at::Tensor& gate = in.gate;
  at::Tensor out = at::empty_like(gate, at::MemoryFormat::Contiguous);
  WithStorage(gate, [&]<typename T>() {
    const SwiGluArgs<T> args = {.gate = Elements<T>(gate),
                                .up = Elements<T>(in.up),
                                .out = MutableElements<T>(out),
                                .count = gate.numel(),
                                .width = in.width,
                                .gate_stride = in.gate_stride,
                                .up_stride = in.up_stride,
                                .map = map};
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

// Of gate and up. A gate that was copied has a dense gradient.
std::array<at::Tensor, 2> PlacesOf(const Operands& in, const ColumnPlace& place) {
  if (place.columns == nullptr || in.width == 0) return EmptyBeside(in.gate, in.up);
  return {place.EmptyLike(in.gate), at::empty_like(in.up, at::MemoryFormat::Contiguous)};
}

Tensors ProductBackward(const BackwardCall& call, GateMap map, const ColumnPlace& place) {
  const Operands in = OperandsOf(call.saved[0], call.saved[1]);
  const at::Tensor dout = call.grads[0].contiguous();
  const auto [dgate, dup] = PlacesOf(in, place);
  WithStorage(dout, [&]<typename T>() {
    const SwiGluGradArgs<T> args = {.gate = Elements<T>(in.gate),
                                    .up = Elements<T>(in.up),
                                    .dout = Elements<T>(dout),
                                    .dgate = MutableElements<T>(dgate),
                                    .dup = MutableElements<T>(dup),
                                    .count = dout.numel(),
                                    .width = in.width,
                                    .gate_stride = in.gate_stride,
                                    .up_stride = in.up_stride,
                                    .dgate_stride = in.width > 0 ? *RowStride(dgate) : 0,
                                    .dup_stride = in.width > 0 ? *RowStride(dup) : 0,
                                    .map = map};
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

at::Tensor FusedProduct(const char* name, const at::Tensor& gate_in, const at::Tensor& up_in,
                        GateMap map, const ColumnPlace& dgate) {
  const auto forward = [&]() -> Forwarded {
    const Operands in = OperandsOf(gate_in, up_in);
    return {.outputs = {ProductFused(in, map)},
            .saved = {in.gate, in.up},
            .backward = [map, dgate](const BackwardCall& call) {
              return ProductBackward(call, map, dgate);
            }};
  };
  return Apply({.name = name, .inputs = {gate_in, up_in}, .forward = forward})[0];
}

at::Tensor Product(const char* name, const at::Tensor& gate, const at::Tensor& up, GateMap map,
                   const ColumnPlace& dgate) {
  CheckDTypes(name, {gate, up});
  HL_CHECK(gate.defined() && IsLike(gate, up), name, " of gate ", Describe(gate), " and up ",
           Describe(up), "; one shape, dtype and device for both would work");
  if (IsFused(gate)) return FusedProduct(name, gate, up, map, dgate);
  const at::Tensor wide = gate.to(ComputeType(gate));
  const at::Tensor mapped = map == GateMap::kSilu ? at::silu(wide) : at::sigmoid(wide);
  return (mapped * up.to(ComputeType(gate))).to(gate.scalar_type());
}

}  // namespace

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up, const ColumnPlace& dgate) {
  return Product("SwiGlu", gate, up, GateMap::kSilu, dgate);
}
at::Tensor Glu(const at::Tensor& gate, const at::Tensor& up, const ColumnPlace& dgate) {
  return Product("Glu", gate, up, GateMap::kSigmoid, dgate);
}

}  // namespace halflife::kernels
