#include "kernels/cross_entropy/rows.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/cpu_math.h"
#include "kernels/dispatch.h"

namespace halflife::kernels::internal {
namespace {

constexpr int64_t kRowGrain = 16;

HL_VECTORISED float Max(const float* x, int64_t count) {
  float max = x[0];
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < count; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

HL_VECTORISED float SumOfExp(const float* x, int64_t count, float max) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += Exp(x[i] - max);
  return sum;
}

// x = e^(x - shift), returns the sum
HL_VECTORISED float ExpInPlace(float* x, int64_t count, float shift) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const float e = Exp(x[i] - shift);
    x[i] = e;
    sum += e;
  }
  return sum;
}

HL_VECTORISED void Scale(float* x, int64_t count, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

void CheckTarget(int64_t target, int64_t vocab) {
  HL_CHECK_AS(ExitCode::kData, target < vocab, "target token ", target,
              " is outside the vocabulary of ", vocab,
              " tokens; is the data set of this model's tokenizer?");
}

struct Row {
  float* logits;  // [vocab]
  int64_t vocab;
  int64_t target;
};
struct RowSums {
  float loss = 0, log_partition = 0;
};

RowSums ReduceRow(const Row& row, float z_loss_weight, bool gradient) {
  if (row.target < 0) {
    if (gradient) std::fill(row.logits, row.logits + row.vocab, 0.0f);
    return {};
  }
  CheckTarget(row.target, row.vocab);
  const float picked = row.logits[row.target];
  const float max = Max(row.logits, row.vocab);
  const float sum =
      gradient ? ExpInPlace(row.logits, row.vocab, max) : SumOfExp(row.logits, row.vocab, max);
  const float log_partition = max + std::log(sum);
  if (gradient) {
    Scale(row.logits, row.vocab, (1 + 2 * z_loss_weight * log_partition) / sum);
    row.logits[row.target] -= 1;
  }
  return {.loss = log_partition - picked, .log_partition = log_partition};
}

CrossEntropyRows FusedRows(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight,
                           bool gradient) {
  const int64_t num_rows = logits.size(0), vocab = logits.size(1);
  CrossEntropyRows out = {at::empty({num_rows}, logits.options()),
                          at::empty({num_rows}, logits.options())};
  auto* const values = logits.mutable_data_ptr<float>();
  const auto* const target = targets.const_data_ptr<int64_t>();
  auto* const loss = out.loss.mutable_data_ptr<float>();
  auto* const log_partition = out.log_partition.mutable_data_ptr<float>();
  at::parallel_for(0, num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const RowSums sums = ReduceRow({values + row * vocab, vocab, target[row]},
                                     static_cast<float>(z_loss_weight), gradient);
      loss[row] = sums.loss;
      log_partition[row] = sums.log_partition;
    }
  });
  return out;
}

// Other devices and dtypes.
CrossEntropyRows ComposedRows(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight,
                              bool gradient) {
  if (logits.is_cpu() && targets.numel() > 0)
    CheckTarget(targets.max().item<int64_t>(), logits.size(1));
  const at::Tensor has_target = targets >= 0, index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor zero = at::zeros({}, logits.options());
  const at::Tensor log_partition = at::logsumexp(logits, {1});
  const CrossEntropyRows out = {
      at::where(has_target, log_partition - logits.gather(1, index).squeeze(1), zero),
      at::where(has_target, log_partition, zero)};
  if (!gradient) return out;
  const at::Tensor weight = has_target.to(logits.scalar_type());
  logits.sub_(log_partition.unsqueeze(1)).exp_();
  logits.mul_(((1 + 2 * z_loss_weight * log_partition) * weight).unsqueeze(1));
  logits.scatter_add_(1, index, -weight.unsqueeze(1));
  return out;
}

}  // namespace

CrossEntropyRows ReduceRows(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight,
                            bool gradient) {
  return IsCpuFloat(logits) ? FusedRows(logits, targets, z_loss_weight, gradient)
                            : ComposedRows(logits, targets, z_loss_weight, gradient);
}

}  // namespace halflife::kernels::internal
