#include "ops/rows/swiglu.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <array>

#include "core/error.h"
#include "kernels/rows/swiglu_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

constexpr int64_t kSwiGluGrain = 1 << 15;

struct SwiGluOp {
  struct Inputs {
    at::Tensor gate, up;
  };
  struct Outputs {
    at::Tensor out;
  };
  struct Saved {
    at::Tensor gate, up;
  };
};

// gate and up in the form that the kernels read: the tensors themselves, or copies.
struct SwiGluOperands {
  at::Tensor gate, up;
  int64_t width = 0, gate_stride = 0, up_stride = 0;
};

SwiGluOperands OperandsOf(const at::Tensor& gate, const at::Tensor& up) {
  const bool dense = gate.is_contiguous() && up.is_contiguous();
  if (!dense && gate.dim() >= 2 && gate.size(-1) % kernels::kSwiGluColumns == 0) {
    const auto gate_stride = RowStride(gate), up_stride = RowStride(up);
    if (gate_stride.has_value() && up_stride.has_value())
      return {gate, up, gate.size(-1), *gate_stride, *up_stride};
  }
  return {gate.contiguous(), up.contiguous()};
}

at::Tensor ProductFused(const SwiGluOperands& in, kernels::GateMap map) {
  const at::Tensor& gate = in.gate;
  at::Tensor out = at::empty_like(gate, at::MemoryFormat::Contiguous);
  WithStorage(gate, [&]<typename T>() {
    const kernels::SwiGluArgs<T> args = {.gate = Elements<T>(gate),
                                         .up = Elements<T>(in.up),
                                         .out = MutableElements<T>(out),
                                         .count = gate.numel(),
                                         .width = in.width,
                                         .gate_stride = in.gate_stride,
                                         .up_stride = in.up_stride,
                                         .map = map};
    RunRows(
        gate, {.count = args.count, .per_task = kSwiGluGrain},
        [&](int64_t begin, int64_t end) { kernels::cpu::SwiGluForward(args, begin, end); },
        [&](auto stream) { kernels::cuda::SwiGluForward(args, stream); });
  });
  return out;
}

// Returns the buffers for the gradients of gate and up. A gate that was copied has a dense
// gradient.
std::array<at::Tensor, 2> PlacesOf(const SwiGluOperands& in, const ColumnSlice& place) {
  if (place.columns == nullptr || in.width == 0) return EmptyAdjacentHalves(in.gate, in.up);
  return {place.EmptyLike(in.gate), at::empty_like(in.up, at::MemoryFormat::Contiguous)};
}

SwiGluOp::Inputs ProductBackward(const BackwardOf<SwiGluOp>& call, kernels::GateMap map,
                                 const ColumnSlice& place) {
  const SwiGluOperands in = OperandsOf(call.saved.gate, call.saved.up);
  const at::Tensor dout = call.grads.out.contiguous();
  const auto [dgate, dup] = PlacesOf(in, place);
  WithStorage(dout, [&]<typename T>() {
    const kernels::SwiGluGradArgs<T> args = {.gate = Elements<T>(in.gate),
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
    RunRows(
        dout, {.count = args.count, .per_task = kSwiGluGrain},
        [&](int64_t begin, int64_t end) { kernels::cpu::SwiGluBackward(args, begin, end); },
        [&](auto stream) { kernels::cuda::SwiGluBackward(args, stream); });
  });
  return {.gate = dgate, .up = dup};
}

at::Tensor FusedProduct(const char* name, const at::Tensor& gate_in, const at::Tensor& up_in,
                        kernels::GateMap map, const ColumnSlice& dgate) {
  const auto forward = [&]() -> ForwardOf<SwiGluOp> {
    const SwiGluOperands in = OperandsOf(gate_in, up_in);
    return {
        .outputs = {.out = ProductFused(in, map)},
        .saved = {.gate = in.gate, .up = in.up},
        .backward = [map, dgate](const auto& call) { return ProductBackward(call, map, dgate); }};
  };
  return Apply<SwiGluOp>(
             {.name = name, .inputs = {.gate = gate_in, .up = up_in}, .forward = forward})
      .out;
}

at::Tensor Product(const char* name, const at::Tensor& gate, const at::Tensor& up,
                   kernels::GateMap map, const ColumnSlice& dgate) {
  CheckDTypes(name, {gate, up});
  HL_CHECK(gate.defined() && IsLike(gate, up), name, " of gate ", Describe(gate), " and up ",
           Describe(up), ". Use one shape, dtype and device for both.");
  if (IsFused(gate)) return FusedProduct(name, gate, up, map, dgate);
  const at::Tensor wide = gate.to(ComputeType(gate));
  const at::Tensor mapped = map == kernels::GateMap::kSilu ? at::silu(wide) : at::sigmoid(wide);
  return (mapped * up.to(ComputeType(gate))).to(gate.scalar_type());
}

}  // namespace

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up, const ColumnSlice& dgate) {
  return Product("SwiGlu", gate, up, kernels::GateMap::kSilu, dgate);
}
at::Tensor Glu(const at::Tensor& gate, const at::Tensor& up, const ColumnSlice& dgate) {
  return Product("Glu", gate, up, kernels::GateMap::kSigmoid, dgate);
}

}  // namespace halflife::ops
