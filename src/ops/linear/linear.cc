#include "ops/linear/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/unsafe_split_with_sizes.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "ops/linear/linear_products.h"
#include "ops/linear/right_operand.h"
#include "ops/linear/weight_product.h"
#include "ops/linear/weight_sums.h"
#include "ops/linear/widened.h"
#include "ops/torch/autograd.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"

namespace halflife::ops {
namespace {

// Weights of a layer that are multiplied as one matrix.
struct WeightGroup {
  std::vector<size_t> numbers;  // indices of the weights, in the order of their rows in `matrix`
  at::Tensor matrix;
};

// If products are joined, groups weights that are adjacent in memory (the arena stores those of one
// part so). Otherwise each weight is a group.
std::vector<WeightGroup> GroupWeights(const at::Tensor& x, at::TensorList weights) {
  std::vector<WeightGroup> groups;
  if (!JoinsProducts(x)) {
    for (size_t i = 0; i < weights.size(); ++i)
      groups.push_back({.numbers = {i}, .matrix = weights[i]});
    return groups;
  }
  for (const std::vector<size_t>& numbers : AdjacentRowGroups(weights)) {
    Tensors rows;
    for (const size_t i : numbers) rows.push_back(weights[i]);
    groups.push_back({.numbers = numbers, .matrix = rows.size() > 1 ? JoinRows(rows) : rows[0]});
  }
  return groups;
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
  const std::vector<WeightGroup> groups = GroupWeights(x, weights);
  Tensors matrices, products;
  for (const WeightGroup& group : groups) matrices.push_back(group.matrix);
  if (UsesWidened(x, matrices)) {
    products = WidenedForward(x, matrices);
  } else {
    for (const at::Tensor& matrix : matrices) products.push_back(PlainForward(x, matrix));
  }
  Tensors outs(weights.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<int64_t> widths;
    for (const size_t number : groups[i].numbers) widths.push_back(weights[number].size(0));
    const Tensors parts = widths.size() > 1 ? at::unsafe_split_with_sizes(products[i], widths, -1)
                                            : Tensors{products[i]};
    for (size_t j = 0; j < parts.size(); ++j) outs[groups[i].numbers[j]] = parts[j];
  }
  return outs;
}

Tensors WeightGradients(const LinearProduct& product, const at::Tensor& x) {
  if (product.sum.defined()) {
    at::Tensor sum = product.sum;
    if (HasWideProducts(x)) {
      SumWeightGradient(sum, product.added, product.dy, x);
    } else {
      GradientSink::Place{sum, product.added}.Take(WeightGradient(product.dy, x));
    }
    return {};
  }
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
  LinearGrads result = {.dx = call.dx, .dweights = {}};
  bool added = call.dx_added;
  for (const LinearProduct& product : call.products) {
    const bool wanted = product.wants_dweights || product.sum.defined();
    result.dweights.push_back(wanted ? WeightGradients(product, call.x)
                                     : Tensors(product.weights.size()));
    if (!call.wants_dx) continue;
    if (HasOwnMatmul(product.dy, product.matrix)) {
      if (!result.dx.defined()) result.dx = at::empty(call.x.sizes(), call.x.options());
      RightOperand(product.matrix, /*transposed=*/false)
          .Multiply(product.dy.contiguous(), result.dx, added);
    } else if (added) {
      result.dx.addmm_(product.dy, product.matrix);
    } else if (result.dx.defined()) {
      at::mm_out(result.dx, product.dy, product.matrix);
    } else {
      result.dx = at::mm(product.dy, product.matrix);
    }
    added = true;
  }
  return result;
}

// The products of a backward, and the indices of the layer's weights in each.
struct Products {
  std::vector<LinearProduct> products;
  std::vector<std::vector<size_t>> numbers;

  void Add(const BackwardCall& call, const WeightGroup& group) {
    LinearProduct product = {
        .weights = {}, .matrix = group.matrix, .dy = {}, .wants_dweights = false};
    Tensors dys;
    for (const size_t i : group.numbers) {
      product.weights.push_back(call.saved[1 + i]);
      product.wants_dweights = call.wanted[1 + i];
      dys.push_back(call.grads[i].flatten(0, -2));
    }
    product.dy = ColumnsAsOne(dys);
    products.push_back(std::move(product));
    numbers.push_back(group.numbers);
  }
};

// A group is one product if all its outputs have a gradient and either all or none of its weights
// want one. If the backward is itself differentiated, nothing is joined, because each weight needs
// its own place in the graph.
Products ProductsOf(const BackwardCall& call) {
  Products result;
  for (const WeightGroup& group :
       GroupWeights(call.saved[0], at::TensorList(call.saved).slice(1))) {
    const bool one = std::ranges::all_of(group.numbers, [&](size_t i) {
      return call.grads[i].defined() && call.wanted[1 + i] == call.wanted[1 + group.numbers[0]];
    });
    if (one && (group.numbers.size() == 1 || !c10::GradMode::is_enabled())) {
      result.Add(call, group);
      continue;
    }
    for (const size_t i : group.numbers)
      if (call.grads[i].defined()) result.Add(call, {.numbers = {i}, .matrix = call.saved[1 + i]});
  }
  return result;
}

// How a backward returns the gradient of x.
struct InputGradient {
  bool wanted = false;
  ColumnPlace place = {};  // output buffer
  // The gradient of x from its other consumers, to which this one is added; null: none. Borrowed,
  // so that the call's tensor remains the only reference to it.
  const at::Tensor* others = nullptr;
};

// Returns `others` as memory that may be overwritten: the tensor itself if no one else references
// it, else a copy.
at::Tensor ToAccumulator(const at::Tensor& others) {
  const bool own = others.use_count() == 1 && others.storage().use_count() == 1;
  return own && others.is_contiguous() ? others : others.clone(at::MemoryFormat::Contiguous);
}

LinearGrads Backward(const at::Tensor& x, std::vector<LinearProduct> products, bool widened,
                     const InputGradient& of_x) {
  const at::Tensor rows = x.flatten(0, -2);
  const bool dense = !widened && RowStride(rows).has_value();
  LinearGradCall call = {.x = dense ? rows : rows.contiguous(),
                         .products = std::move(products),
                         .wants_dx = of_x.wanted};
  const bool in_place = of_x.wanted && !widened && !c10::GradMode::is_enabled();
  const bool joins = in_place && of_x.others != nullptr;
  if (joins) {
    call.dx = ToAccumulator(*of_x.others).flatten(0, -2), call.dx_added = true;
  } else if (in_place && of_x.place.columns != nullptr &&
             !HasOwnMatmul(call.products[0].dy, call.products[0].matrix)) {
    // The project's own kernels write dense rows.
    call.dx = of_x.place.EmptyLike(x).flatten(0, -2);
  }
  LinearGrads grads = widened ? WidenedBackward(call) : PlainBackward(call);
  if (grads.dx.defined()) grads.dx = grads.dx.view(x.sizes());
  if (grads.dx.defined() && of_x.others != nullptr && !joins) grads.dx = grads.dx + *of_x.others;
  return grads;
}

// `dx` is the output buffer of the gradient of x.
Tensors SharedInputBackward(const BackwardCall& call, const ColumnPlace& dx = {}) {
  const at::Tensor& x = call.saved[0];
  Tensors results(1 + call.grads.size());
  Products of_call = ProductsOf(call);
  if (of_call.products.empty()) return results;
  LinearGrads grads =
      Backward(x, std::move(of_call.products), UsesWidened(x, at::TensorList(call.saved).slice(1)),
               {.wanted = call.wanted[0], .place = dx});
  results[0] = grads.dx;
  for (size_t i = 0; i < grads.dweights.size(); ++i)
    for (size_t j = 0; j < grads.dweights[i].size(); ++j)
      results[1 + of_call.numbers[i][j]] = std::move(grads.dweights[i][j]);
  return results;
}

// How a product is split into parts.
struct SplitSpec {
  std::vector<int64_t> widths;
  bool one = false;       // true: the parts are columns of one product
  bool passes_x = false;  // true: x is an additional output, after the parts
};

// Returns the gradient of x from its other consumers, or null if there is none.
const at::Tensor* UpstreamInputGradient(const BackwardCall& call, const SplitSpec& split) {
  return split.passes_x && call.grads.back().defined() ? &call.grads.back() : nullptr;
}
Tensors PartsOf(const Tensors& grads, const SplitSpec& split) {
  return {grads.begin(), grads.begin() + static_cast<std::ptrdiff_t>(split.widths.size())};
}

// The backward of a split product when it is itself differentiated: one product per part of the
// weight's rows.
Tensors DifferentiatedPartsBackward(const BackwardCall& call, const SplitSpec& split) {
  BackwardCall apart = {
      .saved = {call.saved[0]}, .grads = PartsOf(call.grads, split), .wanted = {call.wanted[0]}};
  for (const at::Tensor& rows : call.saved[1].split_with_sizes(split.widths, 0)) {
    apart.saved.push_back(rows);
    apart.wanted.push_back(call.wanted[1]);
  }
  Tensors results = SharedInputBackward(apart);
  if (const at::Tensor* const others = UpstreamInputGradient(call, split))
    results[0] = results[0].defined() ? results[0] + *others : *others;
  if (!call.wanted[1]) return {results[0], {}};
  for (size_t i = 1; i < results.size(); ++i)
    if (!results[i].defined()) results[i] = at::zeros_like(apart.saved[i]);
  return {results[0], at::cat(at::TensorList(results).slice(1), 0)};
}

// Uses one product if the parts are columns of one matrix and all have a gradient. Otherwise it
// uses one product per part, each accumulated in its rows of the weight's gradient.
Tensors PartsBackward(const BackwardCall& call, const SplitSpec& split) {
  const at::Tensor &x = call.saved[0], &weight = call.saved[1];
  if (c10::GradMode::is_enabled()) return DifferentiatedPartsBackward(call, split);
  const Tensors dys = PartsOf(call.grads, split);
  const bool all = std::ranges::all_of(dys, [](const auto& dy) { return dy.defined(); });
  std::vector<LinearProduct> products;
  std::optional<WeightSums> sums;
  if (all && split.one) {
    Tensors rows;
    for (const at::Tensor& dy : dys) rows.push_back(dy.flatten(0, -2));
    products.push_back({.weights = {weight},
                        .matrix = weight,
                        .dy = ColumnsAsOne(rows),
                        .wants_dweights = call.wanted[1]});
  } else {
    if (call.wanted[1]) sums.emplace(Tensors{weight});
    int64_t row = 0;
    for (size_t i = 0; i < dys.size(); row += split.widths[i], ++i) {
      const at::Tensor place = sums ? sums->matrix().narrow(0, row, split.widths[i]) : at::Tensor();
      if (!dys[i].defined()) {
        if (sums && !sums->added()) place.zero_();
        continue;
      }
      products.push_back({.weights = {},
                          .matrix = weight.narrow(0, row, split.widths[i]),
                          .dy = dys[i].flatten(0, -2),
                          .sum = place,
                          .added = sums && sums->added()});
    }
  }
  const at::Tensor* const others = UpstreamInputGradient(call, split);
  if (products.empty())
    return {others != nullptr ? *others : at::Tensor(), sums ? sums->Finish()[0] : at::Tensor()};
  LinearGrads grads = Backward(x, std::move(products), UsesWidened(x, {weight}),
                               {.wanted = call.wanted[0], .others = others});
  const at::Tensor dweight = sums             ? sums->Finish()[0]
                             : call.wanted[1] ? grads.dweights[0][0]
                                              : at::Tensor();
  return {grads.dx, dweight};
}

// Adds gradient buffers to the outputs of one product. If nothing will be differentiated, there are
// none.
std::vector<LinearPart> WithColumns(const Tensors& outs) {
  std::vector<LinearPart> parts;
  std::vector<int64_t> widths;
  for (const at::Tensor& y : outs) widths.push_back(y.size(-1));
  const auto columns = outs[0].requires_grad() ? std::make_shared<ColumnPlaces>(widths) : nullptr;
  for (const at::Tensor& y : outs)
    parts.push_back({.y = y, .gradient = {.columns = columns, .part = parts.size()}});
  return parts;
}

Tensors SplitProduct(const at::Tensor& x, const at::Tensor& weight, const SplitSpec& split) {
  const auto forward = [&]() -> Forwarded {
    Forwarded result = {
        .outputs = split.one
                       ? at::unsafe_split_with_sizes(Forward(x, {weight})[0], split.widths, -1)
                       : Forward(x, weight.split_with_sizes(split.widths, 0)),
        .saved = {x, weight},
        .backward = [split](const BackwardCall& call) { return PartsBackward(call, split); }};
    if (split.passes_x) result.outputs.push_back(x);
    return result;
  };
  return Apply({.name = "LinearInParts",
                .inputs = {x, weight},
                .undefined_grads = true,
                .forward = forward});
}

}  // namespace

std::vector<LinearPart> LinearInParts(const at::Tensor& x, const at::Tensor& weight,
                                      at::IntArrayRef widths) {
  const bool one = JoinsProducts(x);
  const Tensors outs = SplitProduct(x, weight, {.widths = widths.vec(), .one = one});
  if (one) return WithColumns(outs);
  std::vector<LinearPart> parts;
  for (const at::Tensor& y : outs) parts.push_back({.y = y});
  return parts;
}

std::vector<LinearPart> LinearInColumns(const at::Tensor& x, const at::Tensor& weight,
                                        at::IntArrayRef widths) {
  return WithColumns(SplitProduct(x, weight, {.widths = widths.vec(), .one = true}));
}

PartsBesideInput LinearBesideInput(const at::Tensor& x, const at::Tensor& weight,
                                   at::IntArrayRef widths) {
  Tensors outs = SplitProduct(x, weight, {.widths = widths.vec(), .one = true, .passes_x = true});
  PartsBesideInput result = {.x = outs.back(), .parts = {}};
  outs.pop_back();
  result.parts = WithColumns(outs);
  return result;
}

std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights) {
  Tensors inputs = {x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  const auto forward = [&]() -> Forwarded {
    return {.outputs = Forward(x, weights),
            .saved = inputs,
            .backward = [](const BackwardCall& call) { return SharedInputBackward(call); }};
  };
  return Apply({.name = "Linear", .inputs = inputs, .undefined_grads = true, .forward = forward});
}

std::vector<LinearPart> SharedInputParts(const at::Tensor& x,
                                         const std::vector<at::Tensor>& weights) {
  const Tensors outs = SharedInputLinear(x, weights);
  std::vector<LinearPart> parts(outs.size());
  for (const WeightGroup& group : GroupWeights(x, weights)) {
    Tensors of_run;
    for (const size_t i : group.numbers) of_run.push_back(outs[i]);
    std::vector<LinearPart> columns = WithColumns(of_run);
    if (columns.size() == 1) columns[0].gradient = {};
    for (size_t j = 0; j < columns.size(); ++j) parts[group.numbers[j]] = columns[j];
  }
  return parts;
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const ColumnPlace& dx) {
  if (dx.columns == nullptr) return SharedInputLinear(x, {weight})[0];
  const auto forward = [&]() -> Forwarded {
    return {.outputs = Forward(x, {weight}),
            .saved = {x, weight},
            .backward = [dx](const BackwardCall& call) { return SharedInputBackward(call, dx); }};
  };
  return Apply(
      {.name = "Linear", .inputs = {x, weight}, .undefined_grads = true, .forward = forward})[0];
}

}  // namespace halflife::ops
