#include "kernels/cross_entropy/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "kernels/cpu_math.h"
#include "kernels/dispatch.h"

namespace halflife::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowGrain = 16;

// Returns ln Z; writes the softmax over the logits when `overwrite` is set.
HL_VECTORISED float LogPartition(float* logits, int64_t vocab, bool overwrite) {
  float max = logits[0];
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < vocab; ++i) max = logits[i] > max ? logits[i] : max;
  float sum = 0;
  if (!overwrite) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < vocab; ++i) sum += Exp(logits[i] - max);
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < vocab; ++i) {
      const float e = Exp(logits[i] - max);
      logits[i] = e;
      sum += e;
    }
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (int64_t i = 0; i < vocab; ++i) logits[i] *= inverse;
  }
  return max + std::log(sum);
}

HL_VECTORISED void ScaleRow(float* row, int64_t count, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) row[i] *= factor;
}

void CheckTarget(int64_t target, int64_t vocab) {
  HL_CHECK_AS(ExitCode::kData, target < vocab, "target token ", target,
              " is outside the vocabulary of ", vocab,
              " tokens; is the data set of this model's tokenizer?");
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& logits,
                               const at::Tensor& targets) {
    const int64_t num_rows = logits.size(0), vocab = logits.size(1);
    at::Tensor log_partition = at::empty({num_rows}, logits.options());
    std::vector<float> losses(num_rows, 0.0f);
    float* values = logits.mutable_data_ptr<float>();
    float* log_z = log_partition.mutable_data_ptr<float>();
    const int64_t* target = targets.const_data_ptr<int64_t>();
    at::parallel_for(0, num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        log_z[row] = 0;
        if (target[row] < 0) continue;
        CheckTarget(target[row], vocab);
        const float picked = values[row * vocab + target[row]];
        log_z[row] = LogPartition(values + row * vocab, vocab, true);
        losses[row] = log_z[row] - picked;
      }
    });
    double loss = 0, z_loss = 0;  // fp64: thousands of terms, and the order stays that of the rows
    for (int64_t row = 0; row < num_rows; ++row) {
      loss += losses[row];
      z_loss += static_cast<double>(log_z[row]) * log_z[row];
    }
    context->saved_data["softmax"] = logits.detach();  // by value: overwritten in place by backward
    context->save_for_backward({targets, log_partition});
    at::Tensor sums = at::empty({2}, logits.options());
    sums.mutable_data_ptr<float>()[0] = static_cast<float>(loss);
    sums.mutable_data_ptr<float>()[1] = static_cast<float>(z_loss);
    return {sums.select(0, 0).clone(), sums.select(0, 1).clone()};
  }

  // dlogit = (dloss + 2 dz ln Z) softmax - dloss [target]
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor gradient = context->saved_data["softmax"].toTensor();
    HL_CHECK(gradient.defined() && gradient.numel() > 0, "cross entropy is differentiable once");
    context->saved_data["softmax"] = at::Tensor();
    const float dloss = grads[0].defined() ? grads[0].item<float>() : 0.0f;
    const float dz = grads[1].defined() ? grads[1].item<float>() : 0.0f;
    const int64_t num_rows = gradient.size(0), vocab = gradient.size(1);
    float* values = gradient.mutable_data_ptr<float>();
    const int64_t* target = saved[0].const_data_ptr<int64_t>();
    const float* log_z = saved[1].const_data_ptr<float>();
    at::parallel_for(0, num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* drow = values + row * vocab;
        if (target[row] < 0) {
          std::fill(drow, drow + vocab, 0.0f);
          continue;
        }
        ScaleRow(drow, vocab, dloss + 2 * dz * log_z[row]);
        drow[target[row]] -= dloss;
      }
    });
    return {gradient, at::Tensor()};
  }
};

// [N] each; zero where there is no target.
struct RowTerms {
  at::Tensor loss, log_partition;
};
RowTerms ComposedRows(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor wide = logits.to(ComputeType(logits));
  const at::Tensor has_target = targets >= 0;
  const at::Tensor log_partition = at::logsumexp(wide, {1});
  const at::Tensor picked = wide.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor zero = at::zeros({}, wide.options());
  return {at::where(has_target, log_partition - picked, zero),
          at::where(has_target, log_partition, zero)};
}

}  // namespace

CrossEntropySums CrossEntropy(at::Tensor logits, const at::Tensor& targets) {
  if (IsCpuFloat(logits)) {
    const variable_list sums =
        CrossEntropyFunction::apply(logits.contiguous(), targets.contiguous());
    return {sums[0], sums[1]};
  }
  const RowTerms rows = ComposedRows(logits, targets);
  return {rows.loss.sum(), rows.log_partition.square().sum()};
}

at::Tensor TokenCrossEntropy(const at::Tensor& logits_in, const at::Tensor& targets_in) {
  if (!IsCpuFloat(logits_in)) return ComposedRows(logits_in, targets_in).loss.detach();
  const at::Tensor logits = logits_in.detach().contiguous(), targets = targets_in.contiguous();
  const int64_t num_rows = logits.size(0), vocab = logits.size(1);
  at::Tensor out = at::zeros({num_rows}, logits.options());
  float* losses = out.mutable_data_ptr<float>();
  float* values = logits.mutable_data_ptr<float>();  // read only: LogPartition writes on request
  const int64_t* target = targets.const_data_ptr<int64_t>();
  at::parallel_for(0, num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (target[row] < 0) continue;
      CheckTarget(target[row], vocab);
      losses[row] =
          LogPartition(values + row * vocab, vocab, false) - values[row * vocab + target[row]];
    }
  });
  return out;
}

}  // namespace halflife::kernels
