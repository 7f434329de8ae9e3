#include "ops/rows/learned_decay.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>

#include <cmath>
#include <cstdint>

#include "core/error.h"
#include "kernels/rows/learned_decay_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
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
