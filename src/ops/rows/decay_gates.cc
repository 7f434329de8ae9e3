#include "ops/rows/decay_gates.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/decay_gates_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

struct DecayGateOp {
  struct Inputs {
    at::Tensor x, bias;
  };
  struct Outputs {
    at::Tensor log_decay;
  };
  struct Saved {
    at::Tensor x, bias;  // contiguous
  };
};

kernels::DecayGateForm FormOf(const at::Tensor& bias, const DecayGateConfig& config) {
  return {.bias = Elements<float>(bias),
          .scale = static_cast<float>(config.scale),
          .floor = static_cast<float>(config.floor)};
}

at::Tensor ForwardFused(const at::Tensor& x, const at::Tensor& bias,
                        const DecayGateConfig& config) {
  at::Tensor log_decay = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  WithStorage(x, [&]<typename T>() {
    const kernels::DecayGateRows<T> rows = {.x = Elements<T>(x),
                                            .log_decay = MutableElements<float>(log_decay),
                                            .form = FormOf(bias, config),
                                            .num_rows = x.numel() / bias.numel(),
                                            .dim = bias.numel()};
    RunRows(
        x, {.count = rows.num_rows, .per_task = kernels::cpu::kRowsPerPartial},
        [&](int64_t begin, int64_t end) { kernels::cpu::DecayGateForward(rows, begin, end); },
        [&](auto stream) { kernels::cuda::DecayGateForward(rows, stream); });
  });
  return log_decay;
}

// Overwrites dbias [dim].
template <typename T>
void BackwardOnCpu(const kernels::DecayGateGradRows<T>& rows, float* dbias) {
  const PartialSums partial =
      SumBlocks({.count = rows.num_rows, .per_task = kernels::cpu::kRowsPerPartial}, rows.dim,
                [&](int64_t begin, int64_t end, float* sum) {
                  kernels::cpu::DecayGateBackward(rows, begin, end, sum);
                });
  kernels::cpu::SumPartials(partial.values.data(), partial.num_blocks, rows.dim, dbias);
}

DecayGateOp::Inputs BackwardFused(const BackwardOf<DecayGateOp>& call,
                                  const DecayGateConfig& config) {
  const at::Tensor &x = call.saved.x, &bias = call.saved.bias;
  const at::Tensor dout = call.grads.log_decay.contiguous();
  const at::Tensor dx = at::empty_like(x), dbias = at::empty_like(bias);
  auto* const bias_sum = MutableElements<float>(dbias);
  WithStorage(x, [&]<typename T>() {
    const kernels::DecayGateGradRows<T> rows = {.x = Elements<T>(x),
                                                .dlog_decay = Elements<float>(dout),
                                                .dx = MutableElements<T>(dx),
                                                .form = FormOf(bias, config),
                                                .num_rows = x.numel() / bias.numel(),
                                                .dim = bias.numel()};
    RunOn(
        x, [&] { BackwardOnCpu(rows, bias_sum); },
        [&](auto stream) {
          const at::Tensor partials =
              at::empty({kernels::cuda::NumRowPartials(rows.num_rows) * rows.dim}, bias.options());
          kernels::cuda::DecayGateBackward(rows, bias_sum, MutableElements<float>(partials),
                                           stream);
        });
  });
  return {.x = dx, .bias = dbias};
}

at::Tensor Fused(const at::Tensor& x_in, const at::Tensor& bias_in, const DecayGateConfig& config) {
  const auto forward = [&]() -> ForwardOf<DecayGateOp> {
    const at::Tensor x = x_in.contiguous(), bias = bias_in.contiguous();
    return {.outputs = {.log_decay = ForwardFused(x, bias, config)},
            .saved = {.x = x, .bias = bias},
            .backward = [config](const auto& call) { return BackwardFused(call, config); }};
  };
  return Apply<DecayGateOp>(
             {.name = "DecayGate", .inputs = {.x = x_in, .bias = bias_in}, .forward = forward})
      .log_decay;
}

}  // namespace

at::Tensor DecayGate(const at::Tensor& x, const at::Tensor& bias, const DecayGateConfig& config) {
  CheckDTypes("DecayGate", {x, bias});
  HL_CHECK(x.defined() && x.dim() >= 1 && x.size(-1) >= 1 && FitsWith(x, bias, {x.size(-1)}),
           "DecayGate got x ", Describe(x), " with bias ", Describe(bias),
           ". Use x [..., C] and bias [C] on one device.");
  if (IsFused(x) && bias.scalar_type() == at::kFloat) return Fused(x, bias, config);
  const at::ScalarType compute = ComputeType(x);
  const at::Tensor z = x.to(compute) + bias.to(compute);
  return (at::log_sigmoid(z) * config.scale).clamp_min(config.floor);
}

namespace {

// The least alpha of a gate with a bound. Its logarithm stays finite if a bound is so close to 0
// that fp32 rounds it to 0.
constexpr double kMinAlpha = 1e-30;

struct ForgetGateOp {
  using Inputs = ForgetGateInputs;
  using Outputs = ForgetGateOutput;
  struct Saved {
    at::Tensor x, bound;
  };
};

// With a the sigmoid of x, r = 1 - a and b the bound:
//
//   dx = (1 - b) a r (dlog_decay / alpha - dk),   dbound = sum of r (dlog_decay / alpha - dk)
//
// Without a bound, a / alpha is 1, also where both round to 0.
ForgetGateInputs ForgetGateBackward(const BackwardOf<ForgetGateOp>& call) {
  const auto& [x, bound] = call.saved;
  const at::ScalarType compute = ComputeType(x);
  const at::Tensor wide = x.to(compute), a = at::sigmoid(wide), r = at::sigmoid(-wide);
  const at::Tensor dk = call.grads.k.to(compute), &dlog = call.grads.log_decay;
  if (!bound.defined()) return {.x = (r * (dlog - a * dk)).to(x.scalar_type())};
  const at::Tensor rest = 1 - bound, scaled = rest * a;
  const at::Tensor of_bound = r * (dlog / (bound + scaled).clamp_min(kMinAlpha) - dk);
  ForgetGateInputs grads = {.x = (scaled * of_bound).to(x.scalar_type())};
  if (call.Wants(&ForgetGateInputs::bound)) grads.bound = of_bound.reshape({-1, x.size(-1)}).sum(0);
  return grads;
}

}  // namespace

ForgetGateOutput ForgetGate(const ForgetGateInputs& inputs) {
  const auto& [x, bound] = inputs;
  CheckDTypes("ForgetGate", {x});
  HL_CHECK(!bound.defined() || (bound.dim() == 1 && bound.size(0) == x.size(-1) &&
                                bound.scalar_type() == ComputeType(x)),
           "ForgetGate: bound ", Describe(bound), " does not fit x ", Describe(x),
           ". Use one value per channel, in the compute type of x.");
  const auto forward = [&]() -> ForwardOf<ForgetGateOp> {
    const at::Tensor wide = x.to(ComputeType(x));
    at::Tensor k = at::sigmoid(-wide), log_decay;
    if (bound.defined()) {
      const at::Tensor rest = 1 - bound;
      const at::Tensor alpha = (bound + rest * at::sigmoid(wide)).clamp_min(kMinAlpha);
      k = rest * k;
      log_decay = at::where(k < 0.5, at::log1p(-k), at::log(alpha));
    } else {
      log_decay = at::log_sigmoid(wide);
    }
    return {.outputs = {.k = k.to(x.scalar_type()), .log_decay = log_decay},
            .saved = {.x = x, .bound = bound},
            .backward = ForgetGateBackward};
  };
  return Apply<ForgetGateOp>({.name = "ForgetGate", .inputs = inputs, .forward = forward});
}

namespace {

// The parameters of the kernels that are not tensors.
struct Shape {
  int64_t heads, width;
  kernels::LearnedDecayForm form = kernels::LearnedDecayForm::kNegativeExp;
  float scale = 1, most = 0;

  kernels::LearnedDecayArgs Args(const at::Tensor& p, const at::Tensor& log_decay) const {
    return {.p = Elements<float>(p),
            .log_decay = MutableElements<float>(log_decay),
            .heads = heads,
            .width = width,
            .form = form,
            .scale = scale,
            .most = most};
  }
};

struct LearnedDecayOp {
  struct Inputs {
    at::Tensor p;
  };
  struct Outputs {
    at::Tensor log_decay;
  };
  struct Saved {
    at::Tensor p;  // as it was given, because its sink is found by tensor identity
    at::Tensor log_decay;
  };
};

at::Tensor Fused(const at::Tensor& p_in, at::IntArrayRef sizes, const Shape& shape) {
  const auto backward = [shape](const BackwardOf<LearnedDecayOp>& call) -> LearnedDecayOp::Inputs {
    const at::Tensor& p = call.saved.p;
    const at::Tensor dense = p.contiguous(), dout = call.grads.log_decay.contiguous();
    GradientBuffer buffer(p, call.Wants(&LearnedDecayOp::Inputs::p));
    const kernels::LearnedDecayGradArgs args = {.forward = shape.Args(dense, call.saved.log_decay),
                                                .dlog_decay = Elements<float>(dout),
                                                .dp = MutableElements<float>(buffer.sum()),
                                                .added = buffer.added()};
    RunOn(
        p, [&] { kernels::cpu::LearnedDecayBackward(args); },
        [&](auto stream) { kernels::cuda::LearnedDecayBackward(args, stream); });
    return {.p = buffer.Finish()};
  };
  const auto forward = [&]() -> ForwardOf<LearnedDecayOp> {
    const at::Tensor p = p_in.contiguous(), log_decay = at::empty(sizes, p.options());
    const kernels::LearnedDecayArgs args = shape.Args(p, log_decay);
    RunOn(
        p, [&] { kernels::cpu::LearnedDecayForward(args); },
        [&](auto stream) { kernels::cuda::LearnedDecayForward(args, stream); });
    return {.outputs = {.log_decay = log_decay},
            .saved = {.p = p_in, .log_decay = log_decay},
            .backward = backward};
  };
  return Apply<LearnedDecayOp>({.name = "LearnedDecay", .inputs = {.p = p_in}, .forward = forward})
      .log_decay;
}

bool RunsFused(const at::Tensor& p) { return IsFused(p) && p.scalar_type() == at::kFloat; }

}  // namespace

at::Tensor NegativeExp(const at::Tensor& p) {
  CheckDTypes("NegativeExp", {p});
  HL_CHECK(p.defined(), "NegativeExp: p is undefined. Pass a tensor.");
  if (!RunsFused(p)) return p.exp().neg();
  return Fused(p, p.sizes(), {.heads = 1, .width = p.numel()});
}

at::Tensor HeadOffsetDecay(const at::Tensor& p, int64_t num_heads,
                           const HeadOffsetDecayConfig& config) {
  CheckDTypes("HeadOffsetDecay", {p});
  HL_CHECK(p.defined() && num_heads >= 1 && p.numel() % num_heads == 0, "HeadOffsetDecay got p ",
           Describe(p), " for ", num_heads, " heads. Use a multiple of num_heads elements.");
  const int64_t width = p.numel() / num_heads;
  if (RunsFused(p))
    return Fused(p, {num_heads, width},
                 {.heads = num_heads,
                  .width = width,
                  .form = kernels::LearnedDecayForm::kHeadOffset,
                  .scale = static_cast<float>(config.scale),
                  .most = static_cast<float>(config.most)});
  const at::Tensor head =
      at::arange(1, num_heads + 1, at::TensorOptions(p.device()).dtype(at::kDouble));
  const at::Tensor base = (-at::exp2(-num_heads / head)).to(at::kFloat);
  const at::Tensor log_decay = base.unsqueeze(1) - config.scale * p.view({num_heads, width});
  return std::isfinite(config.most) ? log_decay.clamp_max(config.most) : log_decay;
}

}  // namespace halflife::ops
