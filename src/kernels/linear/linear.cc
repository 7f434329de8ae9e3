#include "kernels/linear/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/unsafe_split_with_sizes.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/linear/linear_products.h"
#include "kernels/linear/right_operand.h"
#include "kernels/linear/weight_product.h"
#include "kernels/linear/weight_sums.h"
#include "kernels/linear/widened.h"
#include "kernels/torch/autograd.h"
#include "kernels/torch/side_by_side.h"

namespace halflife::kernels {
namespace {

// Some of a layer's weights, multiplied as one matrix.
struct Run {
  std::vector<size_t> numbers;  // of the weights whose rows it has, one below the other
  at::Tensor matrix;
};

// Weights that lie side by side, as an arena has those of one part, where products join; else each
// by itself.
std::vector<Run> RunsOf(const at::Tensor& x, at::TensorList weights) {
  std::vector<Run> runs;
  if (!JoinsProducts(x)) {
    for (size_t i = 0; i < weights.size(); ++i)
      runs.push_back({.numbers = {i}, .matrix = weights[i]});
    return runs;
  }
  for (const std::vector<size_t>& numbers : RunsOfRows(weights)) {
    Tensors rows;
    for (const size_t i : numbers) rows.push_back(weights[i]);
    runs.push_back({.numbers = numbers, .matrix = rows.size() > 1 ? RowsAsOne(rows) : rows[0]});
  }
  return runs;
}

at::Tensor PlainForward(const at::Tensor& x, const at::Tensor& weight) {
  if (!HasOwnMatmul(x, weight)) return at::linear(x, weight);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor rows = at::empty({x.numel() / x.size(-1), weight.size(0)}, x.options());
  RightOperand(weight, /*transposed=*/true).Multiply(x.flatten(0, -2).contiguous(), rows);
  return rows.view(shape);
}

Tensors Forward(const at::Tensor& x, at::TensorList weights) {
  const std::vector<Run> runs = RunsOf(x, weights);
  Tensors matrices, products;
  for (const Run& run : runs) matrices.push_back(run.matrix);
  if (UsesWidened(x, matrices)) {
    products = WidenedForward(x, matrices);
  } else {
    for (const at::Tensor& matrix : matrices) products.push_back(PlainForward(x, matrix));
  }
  Tensors outs(weights.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<int64_t> widths;
    for (const size_t number : runs[i].numbers) widths.push_back(weights[number].size(0));
    const Tensors parts = widths.size() > 1 ? at::unsafe_split_with_sizes(products[i], widths, -1)
                                            : Tensors{products[i]};
    for (size_t j = 0; j < parts.size(); ++j) outs[runs[i].numbers[j]] = parts[j];
  }
  return outs;
}

Tensors WeightGradients(const LinearProduct& product, const at::Tensor& x) {
  if (!c10::GradMode::is_enabled() && HasWideProducts(x)) {
    WeightSums sums(product.weights);
    SumWeightGradient(sums.matrix(), sums.added(), product.dy, x);
    return sums.Finish();
  }
  const at::Tensor all = WeightGradient(product.dy, x);
  Tensors grads;
  int64_t row = 0;
  for (const at::Tensor& weight : product.weights) {
    grads.push_back(all.narrow(0, row, weight.size(0)));
    row += weight.size(0);
  }
  return grads;
}

LinearGrads PlainBackward(const LinearGradCall& call) {
  LinearGrads result;
  for (const LinearProduct& product : call.products) {
    result.dweights.push_back(product.wants_dweights ? WeightGradients(product, call.x)
                                                     : Tensors(product.weights.size()));
    if (!call.wants_dx) continue;
    if (HasOwnMatmul(product.dy, product.matrix)) {
      const bool added = result.dx.defined();
      if (!added) result.dx = at::empty_like(call.x);
      RightOperand(product.matrix, /*transposed=*/false)
          .Multiply(product.dy.contiguous(), result.dx, added);
    } else if (result.dx.defined()) {
      result.dx.addmm_(product.dy, product.matrix);
    } else {
      result.dx = at::mm(product.dy, product.matrix);
    }
  }
  return result;
}

// A backward's products, and which of the layer's weights each has.
struct Products {
  std::vector<LinearProduct> products;
  std::vector<std::vector<size_t>> numbers;

  void Add(const BackwardCall& call, const Run& run) {
    LinearProduct product = {
        .weights = {}, .matrix = run.matrix, .dy = {}, .wants_dweights = false};
    Tensors dys;
    for (const size_t i : run.numbers) {
      product.weights.push_back(call.saved[1 + i]);
      product.wants_dweights = call.wanted[1 + i];
      dys.push_back(call.grads[i].flatten(0, -2));
    }
    product.dy = ColumnsAsOne(dys);
    products.push_back(std::move(product));
    numbers.push_back(run.numbers);
  }
};

// A run is one product where all its outputs have a gradient, and all of its weights want one or
// none. Nothing joins where the backward is differentiated: the weights' own place in its graph
// counts.
Products ProductsOf(const BackwardCall& call) {
  Products result;
  for (const Run& run : RunsOf(call.saved[0], at::TensorList(call.saved).slice(1))) {
    const bool one = std::ranges::all_of(run.numbers, [&](size_t i) {
      return call.grads[i].defined() && call.wanted[1 + i] == call.wanted[1 + run.numbers[0]];
    });
    if (one && (run.numbers.size() == 1 || !c10::GradMode::is_enabled())) {
      result.Add(call, run);
      continue;
    }
    for (const size_t i : run.numbers)
      if (call.grads[i].defined()) result.Add(call, {.numbers = {i}, .matrix = call.saved[1 + i]});
  }
  return result;
}

Tensors SharedInputBackward(const BackwardCall& call) {
  const at::Tensor& x = call.saved[0];
  Tensors results(1 + call.grads.size());
  Products of_call = ProductsOf(call);
  if (of_call.products.empty()) return results;
  const LinearGradCall grad_call = {.x = x.flatten(0, -2).contiguous(),
                                    .products = std::move(of_call.products),
                                    .wants_dx = call.wanted[0]};
  LinearGrads grads = UsesWidened(x, at::TensorList(call.saved).slice(1))
                          ? WidenedBackward(grad_call)
                          : PlainBackward(grad_call);
  if (grads.dx.defined()) results[0] = grads.dx.view(x.sizes());
  for (size_t i = 0; i < grads.dweights.size(); ++i)
    for (size_t j = 0; j < grads.dweights[i].size(); ++j)
      results[1 + of_call.numbers[i][j]] = std::move(grads.dweights[i][j]);
  return results;
}

}  // namespace

std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights) {
  Tensors inputs = {x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  const auto forward = [&]() -> Forwarded {
    return {.outputs = Forward(x, weights), .saved = inputs, .backward = SharedInputBackward};
  };
  return Apply({.name = "Linear", .inputs = inputs, .undefined_grads = true, .forward = forward});
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight) {
  return SharedInputLinear(x, {weight})[0];
}

}  // namespace halflife::kernels
