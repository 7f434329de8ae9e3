#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/common/cpu/vectorised.h"
#include "kernels/cross_entropy/cross_entropy_args.h"

namespace halflife::kernels::cpu {
namespace {

HL_INLINE float MaxLoop(const float* x, int64_t count) {
  float max = x[0];
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < count; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

HL_INLINE float SumOfExpLoop(const float* x, int64_t count, float max) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += Exp(x[i] - max);
  return sum;
}

// Replaces x by e^(x - shift) and returns the sum.
HL_INLINE float ExpInPlaceLoop(float* x, int64_t count, float shift) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const float e = Exp(x[i] - shift);
    x[i] = e;
    sum += e;
  }
  return sum;
}

HL_INLINE void ScaleLoop(float* x, int64_t count, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

float Max(const float* x, int64_t count) {
  return RunVectorised([&]() HL_LAMBDA_INLINE { return MaxLoop(x, count); });
}
float SumOfExp(const float* x, int64_t count, float max) {
  return RunVectorised([&]() HL_LAMBDA_INLINE { return SumOfExpLoop(x, count, max); });
}
float ExpInPlace(float* x, int64_t count, float shift) {
  return RunVectorised([&]() HL_LAMBDA_INLINE { return ExpInPlaceLoop(x, count, shift); });
}
void Scale(float* x, int64_t count, float factor) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ScaleLoop(x, count, factor); });
}

// Computes loss and gradient of one row that has a target.
void ReduceRow(const LogitRows& rows, int64_t row) {
  float* const logits = rows.logits + row * rows.vocab;
  const int64_t target = rows.targets[row], vocab = rows.vocab;
  CheckTarget(target, vocab);
  const float picked = logits[target];
  const float max = Max(logits, vocab);
  const bool gradient = rows.gradient != LogitGradient::kNone;
  const float sum = gradient ? ExpInPlace(logits, vocab, max) : SumOfExp(logits, vocab, max);
  const float log_partition = max + std::log(sum);
  if (gradient) {
    Scale(logits, vocab, (1 + 2 * rows.z_loss_weight * log_partition) / sum);
    logits[target] -= 1;
  }
  rows.loss[row] = log_partition - picked;
  rows.log_partition[row] = log_partition;
}

}  // namespace

void CheckTarget(int64_t target, int64_t vocab) {
  HL_CHECK_AS(ExitCode::kData, target < vocab, "target token ", target,
              " is outside the vocabulary of ", vocab,
              " tokens. Use a data set that was prepared with this model's tokenizer.");
}

void ReduceRows(const LogitRows& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    if (rows.targets[row] >= 0) {
      ReduceRow(rows, row);
      continue;
    }
    float* const logits = rows.logits + row * rows.vocab;
    if (rows.gradient != LogitGradient::kNone) std::fill(logits, logits + rows.vocab, 0.0f);
    rows.loss[row] = rows.log_partition[row] = 0;
  }
}

}  // namespace halflife::kernels::cpu
