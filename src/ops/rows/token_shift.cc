#include "ops/rows/token_shift.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/token_shift_args.h"
#include "ops/sequence/tokens_before.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

// Operands of forward and backward. All are contiguous; tail and starts may be undefined.
struct ShiftOperands {
  at::Tensor x, tail, starts;
  Tensors mixes;

  template <typename T>
  kernels::TokenShiftShape<T> Shape() const {
    kernels::TokenShiftShape<T> shape;
    shape.x = Elements<T>(x);
    shape.tail = Elements<T>(tail);
    shape.starts = Elements<bool>(starts);
    for (const at::Tensor& mix : mixes) shape.mixes[shape.num_mixes++] = Elements<float>(mix);
    shape.batch = x.size(0), shape.seq_len = x.size(1), shape.dim = x.size(2);
    return shape;
  }
};

struct TokenShiftOp {
  struct Inputs {
    at::Tensor x, tail;
    Tensors mixes;
  };
  struct Outputs {
    Tensors outs;  // one per mix
  };
  // The mixes are saved as they were given, because their sinks are found by tensor identity.
  using Saved = ShiftOperands;
};

template <typename T>
void ForwardOnCpu(const kernels::TokenShiftShape<T>& shape,
                  const kernels::TokenShiftResults<T>& results) {
  const int64_t num_blocks = shape.batch * kernels::cpu::TokenShiftBlocksPerRow(shape.seq_len);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    const std::vector<T> zeros(shape.dim);
    for (int64_t block = begin; block < end; ++block)
      kernels::cpu::TokenShiftForward(shape, results, block, zeros.data());
  });
}

template <typename T>
void BackwardOnCpu(const kernels::TokenShiftShape<T>& shape,
                   const kernels::TokenShiftGrads<T>& grads) {
  const int64_t num_blocks = shape.batch * kernels::cpu::TokenShiftBlocksPerRow(shape.seq_len);
  const int64_t size = shape.num_mixes * shape.dim;
  std::vector<float> partial(num_blocks * size);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    const std::vector<T> zeros(shape.dim);
    std::vector<float> scratch(shape.dim);
    for (int64_t block = begin; block < end; ++block)
      kernels::cpu::TokenShiftBackward(shape, grads, block, zeros.data(),
                                       partial.data() + block * size, scratch.data());
  });
  kernels::cpu::SumPlaces<float> sums;
  for (int i = 0; i < shape.num_mixes; ++i)
    sums.push_back({.out = grads.dmixes[i], .size = shape.dim, .added = grads.added[i]});
  kernels::cpu::SumPartials(partial.data(), num_blocks, sums);
}

Tensors ShiftFused(const ShiftOperands& in) {
  Tensors outs;
  for (size_t i = 0; i < in.mixes.size(); ++i) outs.push_back(at::empty_like(in.x));
  WithStorage(in.x, [&]<typename T>() {
    const kernels::TokenShiftShape<T> shape = in.Shape<T>();
    kernels::TokenShiftResults<T> results;
    for (size_t i = 0; i < outs.size(); ++i) results.out[i] = MutableElements<T>(outs[i]);
    RunOn(
        in.x, [&] { ForwardOnCpu(shape, results); },
        [&](auto stream) { kernels::cuda::TokenShiftForward(shape, results, stream); });
  });
  return outs;
}

TokenShiftOp::Inputs ShiftBackward(const BackwardOf<TokenShiftOp>& call) {
  ShiftOperands in = call.saved;
  Tensors douts;
  for (const at::Tensor& dout : call.grads.outs) douts.push_back(dout.contiguous());
  std::vector<GradientBuffer> places;
  for (size_t i = 0; i < douts.size(); ++i) {
    const at::Tensor& mix = call.saved.mixes[i];
    in.mixes[i] = mix.contiguous();
    places.emplace_back(mix, call.Wants(&TokenShiftOp::Inputs::mixes, i));
  }
  TokenShiftOp::Inputs results = {.x = at::empty_like(in.x),
                                  .tail = in.tail.defined() ? at::empty_like(in.tail) : in.tail,
                                  .mixes = {}};
  WithStorage(in.x, [&]<typename T>() {
    const kernels::TokenShiftShape<T> shape = in.Shape<T>();
    kernels::TokenShiftGrads<T> grads;
    grads.dx = MutableElements<T>(results.x);
    grads.dtail = MutableElements<T>(results.tail);
    for (size_t i = 0; i < douts.size(); ++i) {
      grads.dout[i] = Elements<T>(douts[i]);
      grads.dmixes[i] = MutableElements<float>(places[i].sum());
      grads.added[i] = places[i].added();
    }
    RunOn(
        in.x, [&] { BackwardOnCpu(shape, grads); },
        [&](auto stream) {
          const at::Tensor partials =
              at::empty({kernels::cuda::TokenShiftPartials(shape) * shape.num_mixes * shape.dim},
                        in.x.options().dtype(at::kFloat));
          kernels::cuda::TokenShiftBackward(shape, grads, MutableElements<float>(partials), stream);
        });
  });
  for (GradientBuffer& place : places) results.mixes.push_back(place.Finish());
  return results;
}

Tensors Fused(const TokenShiftInputs& inputs) {
  const at::Tensor& x = inputs.x;
  const at::Tensor tail = inputs.tail.defined() ? inputs.tail.to(x.scalar_type()) : at::Tensor();
  const auto forward = [&]() -> ForwardOf<TokenShiftOp> {
    const auto contiguous = [](const at::Tensor& y) { return y.defined() ? y.contiguous() : y; };
    ShiftOperands in = {.x = x.contiguous(),
                        .tail = contiguous(tail),
                        .starts = contiguous(inputs.starts),
                        .mixes = {}};
    for (const at::Tensor& mix : inputs.mixes) in.mixes.push_back(mix.contiguous());
    const Tensors outs = ShiftFused(in);
    in.mixes = inputs.mixes;
    return {.outputs = {.outs = outs}, .saved = in, .backward = ShiftBackward};
  };
  return Apply<TokenShiftOp>({.name = "TokenShift",
                              .inputs = {.x = x, .tail = tail, .mixes = inputs.mixes},
                              .forward = forward})
      .outs;
}

at::Tensor ZerosLikeTail(const at::Tensor& x) {
  return at::zeros({x.size(0), 1, x.size(2)}, x.options().requires_grad(false));
}

// In LibTorch calls: for fp64, mixes that are not fp32, and no tokens.
Tensors Composed(const TokenShiftInputs& inputs) {
  const at::ScalarType compute = ComputeType(inputs.x);
  const at::Tensor x = inputs.x.to(compute), zeros = ZerosLikeTail(x);
  const at::Tensor tail = inputs.tail.defined() ? inputs.tail.to(compute) : zeros;
  at::Tensor before = at::cat({tail, x}, 1).narrow(1, 0, x.size(1));
  if (inputs.starts.defined()) before = at::where(inputs.starts.unsqueeze(2), zeros, before);
  Tensors outs;
  for (const at::Tensor& given : inputs.mixes) {
    const at::Tensor mix = given.to(compute);
    outs.push_back((mix * x + (1 - mix) * before).to(inputs.x.scalar_type()));
  }
  return outs;
}

void Check(const TokenShiftInputs& inputs) {
  const at::Tensor& x = inputs.x;
  CheckDTypes("TokenShift", {x, inputs.tail});
  HL_CHECK(x.defined() && x.dim() == 3, "TokenShift got x ", Describe(x), ". Use [B, T, D].");
  HL_CHECK(!inputs.mixes.empty() && inputs.mixes.size() <= kernels::kTokenMixes, "TokenShift by ",
           inputs.mixes.size(), " mixes. Use 1 to ", kernels::kTokenMixes, ".");
  for (const at::Tensor& mix : inputs.mixes) {
    CheckDTypes("TokenShift", {mix});
    HL_CHECK(FitsWith(x, mix, {x.size(2)}), "TokenShift got x ", Describe(x), " by a mix ",
             Describe(mix), ". Use [D] on the same device.");
  }
  HL_CHECK(!inputs.tail.defined() || FitsWith(x, inputs.tail, {x.size(0), 1, x.size(2)}),
           "TokenShift got x ", Describe(x), " with tail ", Describe(inputs.tail),
           ". Use [B, 1, D] on the same device, or none.");
  HL_CHECK(!inputs.starts.defined() || (FitsWith(x, inputs.starts, {x.size(0), x.size(1)}) &&
                                        inputs.starts.scalar_type() == at::kBool),
           "TokenShift got x ", Describe(x), " with starts ", Describe(inputs.starts),
           ". Use [B, T] bool on the same device, or none.");
}

bool RunsFused(const TokenShiftInputs& inputs) {
  return IsFused(inputs.x) && inputs.x.numel() > 0 &&
         std::ranges::all_of(inputs.mixes,
                             [](const auto& mix) { return mix.scalar_type() == at::kFloat; });
}

}  // namespace

Tensors TokenShift(const TokenShiftInputs& inputs) {
  Check(inputs);
  if (inputs.segment != nullptr) {
    HL_CHECK(!inputs.tail.defined(),
             "TokenShift: a segment with a tail. Pass no tail: it comes from the previous rank.");
    TokenShiftInputs alone = inputs;
    alone.segment.reset();
    inputs.segment->group->RecordRead();
    alone.tail = DocumentBefore(inputs.x, 1, *inputs.segment);
    return TokenShift(alone);
  }
  return RunsFused(inputs) ? Fused(inputs) : Composed(inputs);
}

at::Tensor TokenShiftTail(const TokenShiftInputs& inputs) {
  Check(inputs);
  const at::Tensor& x = inputs.x;
  if (x.size(1) > 0) return x.narrow(1, x.size(1) - 1, 1);
  return inputs.tail.defined() ? inputs.tail.to(x.scalar_type()) : ZerosLikeTail(x);
}

}  // namespace halflife::ops
