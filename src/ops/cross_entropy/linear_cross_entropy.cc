#include "ops/cross_entropy/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_index_put_impl.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/cross_entropy/cross_entropy_rows.h"
#include "ops/linear/linear_internal.h"
#include "ops/linear/row_products.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

using internal::CrossEntropyRows;
using internal::LogitGradient;

// Returns the dtype of matmul operands. A GPU multiplies bf16 as it is stored; elsewhere operands
// are widened first. Results always have the compute dtype: rounding a logit of 100 to bf16 would
// give an error of up to 0.25.
at::ScalarType OperandType(const at::Tensor& x) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 ? at::kBFloat16 : ComputeType(x);
}
// Computes out = a b, with out in the compute dtype.
void Multiply(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == out.scalar_type()) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, out.scalar_type());
  }
}
// Computes sum += a b, with sum in the compute dtype.
void AddProduct(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == sum.scalar_type()) {
    sum.addmm_(a, b);
  } else {
    at::addmm_out(sum, sum, a, b, sum.scalar_type());
  }
}

// The rows that take part in the products.
struct ChosenRows {
  LinearCrossEntropyInputs inputs;  // restricted to the chosen rows
  at::Tensor numbers;               // [n] int64, the indices of the rows; undefined: all rows
  int64_t num_rows = 0;             // number of rows before the choice

  // Returns results of the chosen rows as results of all rows, zero for the others.
  at::Tensor Spread(const at::Tensor& results) const {
    if (!numbers.defined()) return results;
    std::vector<int64_t> shape = results.sizes().vec();
    shape[0] = num_rows;
    // Not index_copy_: in deterministic mode on a GPU it reads the indices on the host to check
    // their range.
    at::Tensor all = at::zeros(shape, results.options());
    return at::_index_put_impl_(all, {numbers}, results, /*accumulate=*/false, /*unsafe=*/true);
  }
};

ChosenRows ChooseRows(const LinearCrossEntropyInputs& inputs,
                      const LinearCrossEntropyConfig& config) {
  const int64_t num_rows = inputs.hidden.size(0);
  const LinearCrossEntropyInputs all = {inputs.hidden, inputs.weight, inputs.targets.contiguous(),
                                        inputs.row_weights};
  if (NumLossRows(config.num_targets, num_rows) == num_rows) return {all, {}, num_rows};
  if (all.targets.is_cpu()) {
    const auto* const target = all.targets.const_data_ptr<int64_t>();
    const auto found = std::count_if(target, target + num_rows, [](int64_t id) { return id >= 0; });
    HL_CHECK(found == config.num_targets, "cross entropy of ", found,
             " targets, but num_targets is ", config.num_targets);
  }
  // The size is given, so that the host need not wait for the number of matches on a GPU.
  const at::Tensor numbers =
      at::nonzero_static(all.targets >= 0, config.num_targets, /*fill_value=*/0).squeeze(1);
  const at::Tensor& weights = inputs.row_weights;
  return {{inputs.hidden.index_select(0, numbers), inputs.weight,
           inputs.targets.index_select(0, numbers),
           weights.defined() ? weights.index_select(0, numbers) : at::Tensor()},
          numbers,
          num_rows};
}

// Calls visit(first row, rows, logits of the block) for each block in order; the memory of the
// logits is reused. `weight` is that of the inputs in the operands' dtype.
template <typename Visit>
void ForEachBlock(const LinearCrossEntropyInputs& inputs, const at::Tensor& weight,
                  const LinearCrossEntropyConfig& config, const Visit& visit) {
  const int64_t num_rows = inputs.hidden.size(0), vocab = inputs.weight.size(0);
  const int64_t block = config.rows_per_block > 0
                            ? config.rows_per_block
                            : CrossEntropyRowsPerBlock(num_rows, vocab, inputs.hidden.is_cuda());
  const at::ScalarType compute = ComputeType(inputs.hidden);
  const at::Tensor memory = at::empty({block, vocab}, inputs.hidden.options().dtype(compute));
  for (int64_t first = 0; first < num_rows; first += block) {
    const int64_t count = std::min(block, num_rows - first);
    at::Tensor logits = memory.narrow(0, 0, count);
    Multiply(logits, inputs.hidden.narrow(0, first, count).to(weight.scalar_type()), weight.t());
    visit(first, count, logits);
  }
}

struct LossResult {
  at::Tensor loss, z_loss;  // sums in fp64, scalars on the device of the inputs
  // Gradients of the objective, in the compute dtype; undefined unless requested.
  at::Tensor dhidden, dweight;
};

// Sums are fp64: there are thousands of terms, and the result must not depend on the blocks. The
// CPU adds in row order. A GPU has its own order, which depends only on the number of rows, and the
// host does not wait for it.
void AddRows(const CrossEntropyRows& rows, LossResult& result) {
  const at::Tensor loss = rows.loss.to(at::kDouble), log_z = rows.log_partition.to(at::kDouble);
  if (!loss.is_cpu()) {
    result.loss = loss.sum(), result.z_loss = log_z.square().sum();
    return;
  }
  const auto *l = loss.const_data_ptr<double>(), *z = log_z.const_data_ptr<double>();
  double sum = 0, z_sum = 0;
  for (int64_t row = 0; row < loss.numel(); ++row) {
    sum += l[row];
    z_sum += z[row] * z[row];
  }
  result.loss = at::scalar_tensor(sum, loss.options());
  result.z_loss = at::scalar_tensor(z_sum, loss.options());
}

LossResult RunForward(const LinearCrossEntropyInputs& inputs,
                      const LinearCrossEntropyConfig& config, bool gradient) {
  LossResult result;
  const at::ScalarType compute = ComputeType(inputs.hidden);
  const at::ScalarType operand = OperandType(inputs.hidden);
  const at::Tensor weight = inputs.weight.to(operand);
  const LogitGradient kind = !gradient                  ? LogitGradient::kNone
                             : operand == at::kBFloat16 ? LogitGradient::kBf16
                                                        : LogitGradient::kFp32;
  const CrossEntropyRows rows =
      internal::EmptyRows(inputs.hidden.size(0), inputs.hidden.options().dtype(compute));
  if (gradient) {
    result.dhidden = at::empty(inputs.hidden.sizes(), inputs.hidden.options().dtype(compute));
    result.dweight = at::empty(weight.sizes(), weight.options().dtype(compute));
    if (inputs.hidden.size(0) == 0) result.dweight.zero_();
  }
  ForEachBlock(inputs, weight, config, [&](int64_t first, int64_t count, at::Tensor& logits) {
    internal::ReduceRows(logits, inputs.targets.narrow(0, first, count), config.z_loss_weight, kind,
                         rows.Narrow(first, count));
    if (!gradient) return;
    at::Tensor dhidden = result.dhidden.narrow(0, first, count);
    const at::Tensor dlogits =
        kind == LogitGradient::kBf16 ? internal::Bf16Gradient(logits) : logits;
    if (inputs.row_weights.defined())
      dlogits.mul_(inputs.row_weights.narrow(0, first, count).unsqueeze(1));
    Multiply(dhidden, dlogits, weight);
    const at::Tensor hidden = inputs.hidden.narrow(0, first, count).to(operand);
    const auto form = first == 0 ? Multiply : AddProduct;
    form(result.dweight, dlogits.t(), hidden);
  });
  if (inputs.row_weights.defined()) rows.loss.mul_(inputs.row_weights);
  AddRows(rows, result);
  return result;
}

struct LinearCrossEntropyOp {
  struct Inputs {
    at::Tensor hidden, weight;
  };
  struct Outputs {
    at::Tensor objective, loss, z_loss;
  };
  struct Saved {
    at::Tensor weight;
  };
};

// When the forward ends, the gradients are known except for one factor. The backward, which may run
// once, multiplies by it.
auto ScaleGradients(at::Tensor dhidden, at::Tensor dweight, bool weight_is_own) {
  return [dhidden, dweight, weight_is_own](
             const BackwardOf<LinearCrossEntropyOp>& call) mutable -> LinearCrossEntropyOp::Inputs {
    HL_CHECK(dhidden.defined(),
             "cross entropy is differentiable only once. Run backward once per forward.");
    const auto take = [&](at::Tensor& gradient) {
      return std::exchange(gradient, at::Tensor()).mul_(call.grads.objective);
    };
    const at::Tensor& weight = call.saved.weight;
    const at::Tensor of_hidden = take(dhidden).to(weight.scalar_type());
    const at::Tensor of_weight = take(dweight);
    GradientSink* const sink = weight_is_own ? GradientSinkOf(weight) : nullptr;
    if (sink == nullptr) return {.hidden = of_hidden, .weight = of_weight.to(weight.scalar_type())};
    sink->Next().Take(of_weight);
    sink->Written();
    return {.hidden = of_hidden, .weight = {}};
  };
}

void Check(const LinearCrossEntropyInputs& inputs) {
  const at::Tensor &hidden = inputs.hidden, &weight = inputs.weight, &targets = inputs.targets;
  CheckDTypes("cross entropy", {hidden, weight});
  HL_CHECK(hidden.dim() == 2 && weight.dim() == 2 &&
               FitsWith(hidden, weight, {weight.size(0), hidden.size(1)}) &&
               FitsWith(hidden, targets, {hidden.size(0)}) &&
               hidden.scalar_type() == weight.scalar_type() && targets.scalar_type() == at::kLong,
           "cross entropy got hidden ", Describe(hidden), ", weight ", Describe(weight),
           ", targets ", Describe(targets),
           ". Use [N, D], [vocab, D] of one dtype and [N] int64, on one device.");
  const at::Tensor& weights = inputs.row_weights;
  HL_CHECK(!weights.defined() ||
               (FitsWith(hidden, weights, {hidden.size(0)}) && weights.scalar_type() == at::kFloat),
           "cross entropy got row weights ", Describe(weights), ". Use [N] fp32.");
}

}  // namespace

LinearCrossEntropySums LinearCrossEntropy(const LinearCrossEntropyInputs& inputs,
                                          const LinearCrossEntropyConfig& config) {
  Check(inputs);
  HL_CHECK(!inputs.row_weights.defined() || config.z_loss_weight == 0,
           "row weights need a z_loss_weight of 0, not ", config.z_loss_weight);
  const bool gradient = c10::GradMode::is_enabled() &&
                        (inputs.hidden.requires_grad() || inputs.weight.requires_grad());
  const auto forward = [&]() -> ForwardOf<LinearCrossEntropyOp> {
    const ChosenRows rows = ChooseRows(inputs, config);
    LossResult result = RunForward(rows.inputs, config, gradient);
    if (gradient) result.dhidden = rows.Spread(result.dhidden);
    const at::ScalarType compute = ComputeType(inputs.hidden);
    // Copies: for fp64, `to` would otherwise return the same tensor as two outputs.
    const auto scalar = [&](const at::Tensor& sum) {
      return sum.to(compute, /*non_blocking=*/false, /*copy=*/true);
    };
    return {.outputs = {.objective = scalar(result.loss + config.z_loss_weight * result.z_loss),
                        .loss = scalar(result.loss),
                        .z_loss = scalar(result.z_loss)},
            .saved = {.weight = inputs.weight},
            .backward = ScaleGradients(result.dhidden, result.dweight, config.weight_is_own),
            .num_constant = 2};
  };
  const auto [objective, loss, z_loss] =
      Apply<LinearCrossEntropyOp>({.name = "LinearCrossEntropy",
                                   .inputs = {.hidden = inputs.hidden, .weight = inputs.weight},
                                   .forward = forward});
  return {.objective = objective, .loss = loss, .z_loss = z_loss};
}

at::Tensor LinearLogits(const at::Tensor& hidden, const at::Tensor& weight) {
  const at::ScalarType operand = OperandType(hidden), compute = ComputeType(hidden);
  const bool differentiated =
      c10::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad());
  if (HasRowProducts(hidden, weight))
    return RowProducts({.x = hidden}, {{.weight = weight, .up = {}, .dtype = compute}}).ys[0];
  if (HasSkinnyMatmul(hidden, weight)) return SkinnyMatmul(hidden, weight, compute);
  if (operand == compute || differentiated)
    return at::linear(hidden.to(compute), weight.to(compute));
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)});
  at::Tensor logits = at::empty({rows.size(0), weight.size(0)}, hidden.options().dtype(compute));
  Multiply(logits, rows, weight.t());
  std::vector<int64_t> shape = hidden.sizes().vec();
  shape.back() = weight.size(0);
  return logits.view(shape);
}

int64_t CrossEntropyRowsPerBlock(int64_t num_rows, int64_t vocab, bool gpu) {
  constexpr uint64_t kMinRows = 64;
  const uint64_t block_bytes = uint64_t{gpu ? 512u : 64u} << 20;
  const uint64_t row_bytes = std::max<uint64_t>(1, vocab) * sizeof(float);
  const uint64_t rows = std::max(kMinRows, std::bit_floor(block_bytes / row_bytes));
  return std::clamp<int64_t>(num_rows, 1, static_cast<int64_t>(rows));
}

double LinearCrossEntropyBytes(int64_t num_rows, int64_t vocab, int64_t dim,
                               CrossEntropyStorage storage) {
  const auto weight = static_cast<double>(vocab) * static_cast<double>(dim);
  const double logits =
      static_cast<double>(CrossEntropyRowsPerBlock(num_rows, vocab, storage.gpu)) *
      static_cast<double>(vocab);
  return 4 * (logits + static_cast<double>(num_rows) * static_cast<double>(dim) + weight) +
         (storage.bf16 && !storage.gpu ? 4 * weight : 0);
}

namespace {

TokenScores ScoreTokens(const LinearCrossEntropyInputs& inputs,
                        const LinearCrossEntropyConfig& config, bool want_correct) {
  Check(inputs);
  const c10::AutoGradMode no_grad(false);
  const ChosenRows chosen = ChooseRows(inputs, config);
  const LinearCrossEntropyInputs& own = chosen.inputs;
  const at::ScalarType compute = ComputeType(own.hidden);
  const CrossEntropyRows rows =
      internal::EmptyRows(own.hidden.size(0), own.hidden.options().dtype(compute));
  const at::Tensor correct = at::empty_like(rows.loss);
  const at::Tensor weight = own.weight.to(OperandType(own.hidden));
  ForEachBlock(own, weight, config, [&](int64_t first, int64_t count, at::Tensor& logits) {
    const at::Tensor targets = own.targets.narrow(0, first, count);
    internal::ReduceRows(logits, targets, 0, LogitGradient::kNone, rows.Narrow(first, count));
    if (want_correct) correct.narrow(0, first, count).copy_(logits.argmax(1) == targets);
  });
  return {.loss = chosen.Spread(rows.loss),
          .correct = want_correct ? chosen.Spread(correct) : at::Tensor()};
}

}  // namespace

at::Tensor LinearTokenCrossEntropy(const LinearCrossEntropyInputs& inputs,
                                   const LinearCrossEntropyConfig& config) {
  return ScoreTokens(inputs, config, /*want_correct=*/false).loss;
}

TokenScores LinearTokenScores(const LinearCrossEntropyInputs& inputs,
                              const LinearCrossEntropyConfig& config) {
  return ScoreTokens(inputs, config, /*want_correct=*/true);
}

}  // namespace halflife::ops
