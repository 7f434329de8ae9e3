#include "ops/rows/decay_gate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_sigmoid.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/common/cpu/sum_partials.h"
#include "kernels/rows/decay_gate_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
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
    RunOn(
        x,
        [&] {
          at::parallel_for(0, rows.num_rows, kernels::cpu::kGateRowsPerBlock,
                           [&](int64_t begin, int64_t end) {
                             kernels::cpu::DecayGateForward(rows, begin, end);
                           });
        },
        [&](auto stream) { kernels::cuda::DecayGateForward(rows, stream); });
  });
  return log_decay;
}

// Overwrites dbias [dim].
template <typename T>
void BackwardOnCpu(const kernels::DecayGateGradRows<T>& rows, float* dbias) {
  constexpr int64_t kRows = kernels::cpu::kGateRowsPerBlock;
  const int64_t dim = rows.dim, num_blocks = (rows.num_rows + kRows - 1) / kRows;
  std::vector<float> partial(num_blocks * dim);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      kernels::cpu::DecayGateBackward(rows, block * kRows,
                                      std::min(rows.num_rows, (block + 1) * kRows),
                                      partial.data() + block * dim);
  });
  kernels::cpu::SumPartials(partial.data(), num_blocks, dim, dbias);
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
              at::empty({kernels::cuda::NumGatePartials(rows.num_rows) * rows.dim}, bias.options());
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

}  // namespace halflife::ops
