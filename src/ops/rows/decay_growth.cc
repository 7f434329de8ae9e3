#include "ops/rows/decay_growth.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "core/error.h"
#include "kernels/rows/decay_growth_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

void RunOnCpu(const kernels::DecayGrowthArgs& args) {
  std::vector<double> growth(args.heads);
  std::vector<float> factors(args.seq_len * args.heads);
  kernels::cpu::DecayGrowth(args, growth.data(), factors.data());
}

struct LowerGrowthOp {
  struct Inputs {
    at::Tensor log_decay;
  };
  struct Outputs {
    at::Tensor lowered, key_factor, final_log_scale;
  };
  struct Saved {};
};

LowerGrowthOp::Outputs Forward(const at::Tensor& log_decay, int64_t num_heads,
                               const SequenceChunks& chunks) {
  const TokenRuns& runs = chunks.runs();
  const at::Tensor lowered = at::empty_like(log_decay),
                   factor =
                       at::empty({chunks.batch, chunks.seq_len, num_heads}, log_decay.options()),
                   final_scale = at::empty({chunks.num_sequences(), num_heads},
                                           log_decay.options().dtype(at::kDouble));
  const kernels::DecayGrowthArgs args = {.log_decay = Elements<float>(log_decay),
                                         .begin = Elements<int64_t>(runs.begin),
                                         .last = Elements<int64_t>(runs.last),
                                         .lowered = MutableElements<float>(lowered),
                                         .key_factor = MutableElements<float>(factor),
                                         .final_log_scale = MutableElements<double>(final_scale),
                                         .batch = chunks.batch,
                                         .seq_len = chunks.seq_len,
                                         .heads = num_heads,
                                         .decay_heads = log_decay.size(0),
                                         .width = log_decay.numel() / log_decay.size(0),
                                         .sequences = chunks.num_sequences()};
  RunOn(
      log_decay, [&] { RunOnCpu(args); },
      [&](auto stream) { kernels::cuda::DecayGrowth(args, stream); });
  return {.lowered = lowered, .key_factor = factor, .final_log_scale = final_scale};
}

}  // namespace

bool CanLowerGrowth(const at::Tensor& log_decay, int64_t num_heads) {
  return log_decay.defined() && (log_decay.dim() == 1 || log_decay.dim() == 2) &&
         log_decay.numel() > 0 && num_heads <= kernels::kGrowthMaxHeads &&
         num_heads % log_decay.size(0) == 0 && log_decay.scalar_type() == at::kFloat &&
         IsFused(log_decay);
}

LoweredGrowth LowerGrowth(const at::Tensor& log_decay, int64_t num_heads,
                          const SequenceChunks& chunks) {
  HL_CHECK(CanLowerGrowth(log_decay, num_heads) && chunks.device == log_decay.device(),
           "LowerGrowth got log_decay ", Describe(log_decay), " for ", num_heads,
           " heads, and chunks on ", chunks.device.str(),
           ". Use [Hd] or [Hd, K] fp32 on the same device, with Hd a divisor of H.");
  const auto backward = [](const BackwardOf<LowerGrowthOp>& call) -> LowerGrowthOp::Inputs {
    return {.log_decay = call.grads.lowered};
  };
  const auto forward = [&]() -> ForwardOf<LowerGrowthOp> {
    return {.outputs = Forward(log_decay.contiguous(), num_heads, chunks),
            .saved = {},
            .backward = backward,
            .num_constant = 2};
  };
  const LowerGrowthOp::Outputs out = Apply<LowerGrowthOp>({.name = "LowerGrowth",
                                                           .inputs = {.log_decay = log_decay},
                                                           .undefined_grads = true,
                                                           .forward = forward});
  return {.log_decay = out.lowered,
          .key_factor = out.key_factor,
          .final_log_scale = out.final_log_scale};
}

}  // namespace halflife::ops
