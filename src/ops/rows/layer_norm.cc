#include "ops/rows/layer_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/layer_norm_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

// Returns the layout of x's rows, or nullopt if x must be copied first.
std::optional<kernels::LayerNormRows> RowsOf(const at::Tensor& x) {
  if (const auto stride = RowStride(x)) return kernels::LayerNormRows{.rows = 1, .stride = *stride};
  const auto stride = x.dim() < 3 ? std::nullopt : RowStride(x, /*inner=*/2);
  if (!stride.has_value()) return std::nullopt;
  return kernels::LayerNormRows{.rows = x.size(-2), .stride = *stride};
}
at::Tensor InRows(const at::Tensor& x) { return RowsOf(x).has_value() ? x : x.contiguous(); }

// One part of a backward.
struct Normed {
  at::Tensor x, gamma, beta;  // beta may be undefined
  at::Tensor mean, factor;    // [rows] fp32
};

struct LayerNormsOp {
  struct Part {
    at::Tensor x, gamma, beta;
  };
  struct Inputs {
    std::vector<Part> parts;
  };
  struct Outputs {
    Tensors outs;  // one per part
  };
  // gamma and beta are saved as they were given, because their sinks are found by tensor identity.
  struct Saved {
    std::vector<Normed> parts;
  };
};

// Returns the outputs and the saved tensors.
ForwardOf<LayerNormsOp> ForwardFused(const std::vector<LayerNormInput>& inputs, double eps) {
  ForwardOf<LayerNormsOp> result;
  Tensors parameters;  // gamma and beta in the form that the kernel reads
  const int64_t num_rows = NumRows(inputs[0].x);
  WithStorage(inputs[0].x, [&]<typename T>() {
    kernels::LayerNormArgs<T> args;
    args.num_rows = num_rows, args.dim = inputs[0].x.size(-1);
    args.eps = static_cast<float>(eps);
    for (const LayerNormInput& input : inputs) {
      const at::TensorOptions wide = input.x.options().dtype(at::kFloat);
      const Normed part = {.x = InRows(input.x),
                           .gamma = input.gamma.contiguous(),
                           .beta = input.beta.defined() ? input.beta.contiguous() : input.beta,
                           .mean = at::empty({num_rows}, wide),
                           .factor = at::empty({num_rows}, wide)};
      parameters.insert(parameters.end(), {part.gamma, part.beta});
      result.outputs.outs.push_back(at::empty(input.x.sizes(), input.x.options()));
      args.parts[args.num_parts++] = {.x = Elements<T>(part.x),
                                      .place = RowsOf(part.x).value(),
                                      .gamma = Elements<float>(part.gamma),
                                      .beta = Elements<float>(part.beta),
                                      .out = MutableElements<T>(result.outputs.outs.back()),
                                      .mean = MutableElements<float>(part.mean),
                                      .factor = MutableElements<float>(part.factor)};
      result.saved.parts.push_back({.x = part.x,
                                    .gamma = input.gamma,
                                    .beta = input.beta,
                                    .mean = part.mean,
                                    .factor = part.factor});
    }
    RunRows(
        inputs[0].x, {.count = args.num_rows, .per_task = kernels::cpu::kRowsPerPartial},
        [&](int64_t begin, int64_t end) { kernels::cpu::LayerNormForward(args, begin, end); },
        [&](auto stream) { kernels::cuda::LayerNormForward(args, stream); });
  });
  return result;
}

template <typename T>
void BackwardOnCpu(const kernels::LayerNormGradArgs<T>& args) {
  const PartialSums partial =
      SumBlocks({.count = args.num_rows, .per_task = kernels::cpu::kRowsPerPartial},
                2 * args.num_parts * args.dim, [&](int64_t begin, int64_t end, float* sum) {
                  kernels::cpu::LayerNormBackward(args, begin, end, sum);
                });
  kernels::cpu::SumPlaces<float> sums;
  for (int i = 0; i < args.num_parts; ++i) {
    const kernels::LayerNormGradPart<T>& part = args.parts[i];
    sums.push_back({.out = part.dgamma, .size = args.dim, .added = part.gamma_added});
    sums.push_back({.out = part.dbeta, .size = args.dim, .added = part.beta_added});
  }
  kernels::cpu::SumPartials(partial.values.data(), partial.num_blocks, sums);
}

// Buffers for the gradients of a part's parameters.
struct ParameterBuffers {
  GradientBuffer gamma;
  std::optional<GradientBuffer> beta;
};

template <typename T>
kernels::LayerNormGradPart<T> GradPart(const Normed& part, const at::Tensor& gamma,
                                       const at::Tensor& dout, const at::Tensor& dx,
                                       const ParameterBuffers& places) {
  kernels::LayerNormGradPart<T> args = {.x = Elements<T>(part.x),
                                        .place = RowsOf(part.x).value(),
                                        .gamma = Elements<float>(gamma),
                                        .mean = Elements<float>(part.mean),
                                        .factor = Elements<float>(part.factor),
                                        .dout = Elements<T>(dout),
                                        .dx = MutableElements<T>(dx),
                                        .dx_place = RowsOf(dx).value(),
                                        .dgamma = MutableElements<float>(places.gamma.sum()),
                                        .gamma_added = places.gamma.added()};
  if (places.beta) {
    args.dbeta = MutableElements<float>(places.beta->sum());
    args.beta_added = places.beta->added();
  }
  return args;
}

LayerNormsOp::Inputs BackwardFused(const BackwardOf<LayerNormsOp>& call,
                                   const std::vector<ColumnSlice>& of_x) {
  using Part = LayerNormsOp::Part;
  const std::vector<Normed>& parts = call.saved.parts;
  std::vector<ParameterBuffers> places;
  Tensors gammas, douts, dxs;
  for (size_t i = 0; i < of_x.size(); ++i) {
    const Normed& part = parts[i];
    const auto wants = [&](at::Tensor Part::*input) {
      return call.Wants(&LayerNormsOp::Inputs::parts, i, input);
    };
    places.push_back({.gamma = GradientBuffer(part.gamma, wants(&Part::gamma)), .beta = {}});
    if (part.beta.defined()) places.back().beta.emplace(part.beta, wants(&Part::beta));
    gammas.push_back(part.gamma.contiguous());
    douts.push_back(call.grads.outs[i].contiguous());
    dxs.push_back(of_x[i].EmptyLike(part.x));
  }
  WithStorage(parts[0].x, [&]<typename T>() {
    kernels::LayerNormGradArgs<T> args;
    args.num_rows = NumRows(parts[0].x), args.dim = parts[0].x.size(-1);
    for (size_t i = 0; i < parts.size(); ++i)
      args.parts[args.num_parts++] = GradPart<T>(parts[i], gammas[i], douts[i], dxs[i], places[i]);
    RunOn(
        parts[0].x, [&] { BackwardOnCpu(args); },
        [&](auto stream) {
          const at::Tensor partials = at::empty(
              {kernels::cuda::LayerNormPartials(args.num_rows) * args.num_parts * 2 * args.dim},
              parts[0].mean.options());
          kernels::cuda::LayerNormBackward(args, MutableElements<float>(partials), stream);
        });
  });
  LayerNormsOp::Inputs grads;
  for (size_t i = 0; i < parts.size(); ++i)
    grads.parts.push_back({.x = dxs[i],
                           .gamma = places[i].gamma.Finish(),
                           .beta = places[i].beta ? places[i].beta->Finish() : at::Tensor()});
  return grads;
}

Tensors Fused(const std::vector<LayerNormInput>& inputs, double eps) {
  LayerNormsOp::Inputs operands;
  std::vector<ColumnSlice> of_x;
  for (const LayerNormInput& input : inputs) {
    operands.parts.push_back({.x = input.x, .gamma = input.gamma, .beta = input.beta});
    of_x.push_back(input.x_gradient);
  }
  const auto forward = [&]() -> ForwardOf<LayerNormsOp> {
    ForwardOf<LayerNormsOp> result = ForwardFused(inputs, eps);
    result.backward = [of_x](const auto& call) { return BackwardFused(call, of_x); };
    return result;
  };
  return Apply<LayerNormsOp>({.name = "LayerNorms", .inputs = operands, .forward = forward}).outs;
}

// In LibTorch calls: for fp64, no rows, and parameters of other dtypes.
at::Tensor Composed(const LayerNormInput& input, double eps) {
  const at::ScalarType wide = ComputeType(input.x);
  const auto beta = input.beta.defined() ? std::optional(input.beta.to(wide)) : std::nullopt;
  return at::layer_norm(input.x.to(wide), {input.x.size(-1)}, input.gamma.to(wide), beta, eps)
      .to(input.x.scalar_type());
}

// Returns true if `input` can share a pass with `first`.
bool Fits(const LayerNormInput& input, const LayerNormInput& first) {
  const auto learned = [&](const at::Tensor& parameter) {
    return parameter.scalar_type() == at::kFloat;
  };
  return IsFused(input.x) && input.x.numel() > 0 && IsLike(first.x, input.x) &&
         learned(input.gamma) && (!input.beta.defined() || learned(input.beta));
}

}  // namespace

std::vector<at::Tensor> LayerNorms(const std::vector<LayerNormInput>& parts, double eps) {
  std::vector<LayerNormInput> fused;
  std::vector<size_t> numbers;
  Tensors outs(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const LayerNormInput& part = parts[i];
    CheckDTypes("LayerNorms", {part.x, part.gamma, part.beta});
    HL_CHECK(part.x.defined() && part.x.dim() >= 1 && part.x.size(-1) >= 1 &&
                 part.gamma.defined() && FitsWith(part.x, part.gamma, {part.x.size(-1)}) &&
                 (!part.beta.defined() || FitsWith(part.x, part.beta, {part.x.size(-1)})),
             "LayerNorms got x ", Describe(part.x), " with gamma ", Describe(part.gamma),
             " and beta ", Describe(part.beta),
             ". Use x [..., n], gamma [n] and beta [n] or none, on one device.");
    if (fused.size() < kernels::kLayerNormParts && Fits(part, fused.empty() ? part : fused[0])) {
      fused.push_back(part);
      numbers.push_back(i);
    } else {
      outs[i] = Composed(part, eps);
    }
  }
  if (fused.empty()) return outs;
  const Tensors results = Fused(fused, eps);
  for (size_t i = 0; i < numbers.size(); ++i) outs[numbers[i]] = results[i];
  return outs;
}

namespace {

constexpr int64_t kRowsPerTask = 256;

struct RealNormOp {
  struct Inputs {
    at::Tensor x;
  };
  struct Outputs {
    at::Tensor out;
  };
  struct Saved {
    at::Tensor out, factor, slope;
  };
};

RealNormOp::Saved ForwardFused(const at::Tensor& x, double eps) {
  const int64_t dim = x.size(-1), num_rows = x.numel() / dim;
  const at::TensorOptions wide = x.options().dtype(at::kFloat);
  const at::Tensor out = at::empty(x.sizes(), wide), factor = at::empty({num_rows}, wide),
                   slope = at::empty({num_rows}, wide);
  WithStorage(x, [&]<typename T>() {
    const kernels::RealNormRows<T> rows = {.x = Elements<T>(x),
                                           .out = MutableElements<float>(out),
                                           .factor = MutableElements<float>(factor),
                                           .slope = MutableElements<float>(slope),
                                           .num_rows = num_rows,
                                           .dim = dim,
                                           .eps = static_cast<float>(eps)};
    RunRows(
        x, {.count = num_rows, .per_task = kRowsPerTask},
        [&](int64_t begin, int64_t end) { kernels::cpu::RealNormForward(rows, begin, end); },
        [&](auto stream) { kernels::cuda::RealNormForward(rows, stream); });
  });
  return {.out = out, .factor = factor, .slope = slope};
}

// Returns dx. `like` is its dtype.
at::Tensor BackwardFused(const RealNormOp::Saved& forward, const at::Tensor& dout,
                         at::ScalarType like) {
  const at::Tensor dx = at::empty_like(dout, dout.options().dtype(like));
  const int64_t dim = dout.size(-1), num_rows = dout.numel() / dim;
  WithStorage(dx, [&]<typename T>() {
    const kernels::RealNormGradRows<T> rows = {.out = Elements<float>(forward.out),
                                               .factor = Elements<float>(forward.factor),
                                               .slope = Elements<float>(forward.slope),
                                               .dout = Elements<float>(dout),
                                               .dx = MutableElements<T>(dx),
                                               .num_rows = num_rows,
                                               .dim = dim};
    RunRows(
        dx, {.count = num_rows, .per_task = kRowsPerTask},
        [&](int64_t begin, int64_t end) { kernels::cpu::RealNormBackward(rows, begin, end); },
        [&](auto stream) { kernels::cuda::RealNormBackward(rows, stream); });
  });
  return dx;
}

at::Tensor Fused(const at::Tensor& x, double eps) {
  const auto backward =
      [dtype = x.scalar_type()](const BackwardOf<RealNormOp>& call) -> RealNormOp::Inputs {
    return {.x = BackwardFused(call.saved, call.grads.out.contiguous(), dtype)};
  };
  const auto forward = [&]() -> ForwardOf<RealNormOp> {
    const RealNormOp::Saved results = ForwardFused(x.contiguous(), eps);
    return {.outputs = {.out = results.out}, .saved = results, .backward = backward};
  };
  return Apply<RealNormOp>({.name = "RealNorm", .inputs = {.x = x}, .forward = forward}).out;
}

// The same in LibTorch calls, differentiated by autograd: for fp64.
at::Tensor Composed(const at::Tensor& x_in, double eps) {
  const at::Tensor x = x_in.to(ComputeType(x_in));
  const at::Tensor centred = x - x.mean(-1, /*keepdim=*/true);
  const at::Tensor variance =
      centred.square().sum(-1, /*keepdim=*/true) / static_cast<double>(x.size(-1) - 1);
  // Constant rows avoid the square root, whose slope at 0 is infinite.
  const at::Tensor varies = variance != 0;
  const at::Tensor deviation = at::where(varies, variance, at::ones_like(variance)).sqrt() + eps;
  const double constant = eps > 0 ? eps : std::numeric_limits<double>::infinity();
  return centred / at::where(varies, deviation, at::full_like(deviation, constant));
}

}  // namespace

at::Tensor RealNorm(const at::Tensor& x, double eps) {
  CheckDTypes("RealNorm", {x});
  HL_CHECK(x.defined() && x.dim() >= 1 && x.size(-1) >= 2, "RealNorm got x ", Describe(x),
           ". Use x [..., n] with at least 2 channels.");
  return IsFused(x) ? Fused(x, eps) : Composed(x, eps);
}

}  // namespace halflife::ops
