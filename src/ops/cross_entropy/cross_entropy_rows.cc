#include "ops/cross_entropy/cross_entropy_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops::internal {
namespace {

constexpr int64_t kRowGrain = 16;

void ReduceFused(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight,
                 LogitGradient gradient, const CrossEntropyRows& out) {
  const kernels::LogitRows rows = {.logits = MutableElements<float>(logits),
                                   .targets = Elements<int64_t>(targets),
                                   .loss = MutableElements<float>(out.loss),
                                   .log_partition = MutableElements<float>(out.log_partition),
                                   .num_rows = logits.size(0),
                                   .vocab = logits.size(1),
                                   .z_loss_weight = static_cast<float>(z_loss_weight),
                                   .gradient = gradient};
  RunRows(
      logits, {.count = rows.num_rows, .per_task = kRowGrain},
      [&](int64_t begin, int64_t end) { kernels::cpu::ReduceRows(rows, begin, end); },
      [&](auto stream) { kernels::cuda::ReduceRows(rows, stream); });
}

// In LibTorch calls: for fp64.
void ReduceComposed(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight,
                    bool gradient, const CrossEntropyRows& out) {
  if (logits.is_cpu()) {
    const auto* const target = Elements<int64_t>(targets);
    for (int64_t row = 0; row < targets.size(0); ++row)
      kernels::cpu::CheckTarget(target[row], logits.size(1));
  }
  const at::Tensor has_target = targets >= 0, index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor zero = at::zeros({}, logits.options());
  const at::Tensor log_partition = at::logsumexp(logits, {1});
  out.loss.copy_(at::where(has_target, log_partition - logits.gather(1, index).squeeze(1), zero));
  out.log_partition.copy_(at::where(has_target, log_partition, zero));
  if (!gradient) return;
  const at::Tensor weight = has_target.to(logits.scalar_type());
  logits.sub_(log_partition.unsqueeze(1)).exp_();
  logits.mul_(((1 + 2 * z_loss_weight * log_partition) * weight).unsqueeze(1));
  logits.scatter_add_(1, index, -weight.unsqueeze(1));
}

}  // namespace

CrossEntropyRows EmptyRows(int64_t num_rows, const at::TensorOptions& options) {
  return {.loss = at::empty({num_rows}, options), .log_partition = at::empty({num_rows}, options)};
}

at::Tensor Bf16Gradient(const at::Tensor& logits) {
  return logits.view(at::kBFloat16).narrow(1, 0, logits.size(1));
}

void ReduceRows(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight,
                LogitGradient gradient, const CrossEntropyRows& out) {
  const auto is_row = [&](const at::Tensor& x, at::ScalarType dtype) {
    return FitsWith(logits, x, {logits.size(0)}) && x.is_contiguous() && x.scalar_type() == dtype;
  };
  const at::ScalarType dtype = logits.scalar_type();
  HL_CHECK(
      logits.dim() == 2 && logits.is_contiguous() &&
          (dtype == at::kFloat || dtype == at::kDouble) && is_row(targets, at::kLong) &&
          is_row(out.loss, dtype) && is_row(out.log_partition, dtype),
      "cross entropy got logits ", Describe(logits), " with targets ", Describe(targets), ", loss ",
      Describe(out.loss), ", log_partition ", Describe(out.log_partition),
      ". Use logits [R, vocab] fp32 or fp64, targets [R] int64 and the rest [R] of the logits' "
      "dtype, all contiguous on one device.");
  HL_CHECK(gradient != LogitGradient::kBf16 || (RunsOnCuda(logits) && dtype == at::kFloat),
           "cross entropy got logits ", Describe(logits),
           " for a gradient in bf16. Use fp32 logits on a GPU.");
  if (IsFused(logits)) {
    ReduceFused(logits, targets, z_loss_weight, gradient, out);
  } else {
    ReduceComposed(logits, targets, z_loss_weight, gradient != LogitGradient::kNone, out);
  }
}

}  // namespace halflife::ops::internal
