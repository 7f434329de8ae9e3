#include "ops/linear/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/unsafe_split_with_sizes.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ops/linear/float8_linear.h"
#include "ops/linear/linear_internal.h"
#include "ops/linear/row_products.h"
#include "ops/torch/autograd.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"

namespace halflife::ops {
namespace {

// Weights of a layer that are multiplied as one matrix.
struct WeightGroup {
  std::vector<size_t> numbers;  // indices of the weights, in the order of their rows in `matrix`
  at::Tensor matrix;
  Float8Weights* float8 = nullptr;  // not null: an FP8 product
};

// Groups weights that are adjacent in memory (the arena stores those of one part so).
void AddAdjacent(at::TensorList weights, const std::vector<size_t>& numbers, Float8Weights* float8,
                 std::vector<WeightGroup>& groups) {
  Tensors chosen;
  for (const size_t i : numbers) chosen.push_back(weights[i]);
  for (const std::vector<size_t>& run : AdjacentRowGroups(chosen)) {
    WeightGroup group = {.numbers = {}, .matrix = {}, .float8 = float8};
    Tensors rows;
    for (const size_t i : run) {
      group.numbers.push_back(numbers[i]);
      rows.push_back(chosen[i]);
    }
    group.matrix = rows.size() > 1 ? JoinRows(rows) : rows[0];
    groups.push_back(std::move(group));
  }
}

// If products are joined, groups weights that are adjacent in memory. Otherwise each weight is a
// group.
std::vector<WeightGroup> GroupWeights(const at::Tensor& x, at::TensorList weights) {
  const bool joins = JoinsProducts(x);
  std::vector<WeightGroup> groups;
  std::vector<size_t> in_float8, others;
  Float8Weights* float8 = nullptr;
  for (size_t i = 0; i < weights.size(); ++i) {
    Float8Weights* const of_weight = Float8WeightsFor(x, weights[i]);
    if (!joins) groups.push_back({.numbers = {i}, .matrix = weights[i], .float8 = of_weight});
    (of_weight != nullptr ? in_float8 : others).push_back(i);
    if (of_weight != nullptr) float8 = of_weight;
  }
  if (!joins) return groups;
  AddAdjacent(weights, in_float8, float8, groups);
  AddAdjacent(weights, others, nullptr, groups);
  return groups;
}

at::Tensor PlainForward(const at::Tensor& x, const at::Tensor& weight) {
  if (HasSkinnyMatmul(x, weight)) return SkinnyMatmul(x, weight, x.scalar_type());
  if (!HasOwnMatmul(x, weight)) return at::linear(x, weight);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor rows = at::empty({x.numel() / x.size(-1), weight.size(0)}, x.options());
  RightOperand(weight, /*transposed=*/true).Multiply(x.flatten(0, -2).contiguous(), rows);
  return rows.view(shape);
}

// x [..., D], matrices [out_i, D] -> [..., out_i].
Tensors MatrixProducts(const at::Tensor& x, const Tensors& matrices) {
  if (HasRowProducts(x, matrices)) {
    std::vector<RowWeight> weights;
    for (const at::Tensor& matrix : matrices) weights.push_back({.weight = matrix});
    return RowProducts({.x = x}, weights).ys;
  }
  if (UsesWidened(x, matrices)) return WidenedForward(x, matrices);
  Tensors products;
  for (const at::Tensor& matrix : matrices) products.push_back(PlainForward(x, matrix));
  return products;
}

// a [rows, width], b [columns, width] -> a b^T in bf16.
at::Tensor Float8Product(const Float8Matrix& a, const Float8Matrix& b, bool fast) {
  return a.factors.defined() ? ScaledProduct(a, b, fast) : MatrixProducts(a.values, {b.values})[0];
}

// Returns the products of x with the matrices of groups.
Tensors GroupProducts(const at::Tensor& x, const std::vector<WeightGroup>& groups) {
  Tensors products(groups.size()), matrices;
  std::optional<Float8Matrix> rows;
  std::vector<int64_t> shape = x.sizes().vec();
  for (size_t i = 0; i < groups.size(); ++i) {
    const WeightGroup& group = groups[i];
    if (group.float8 == nullptr) {
      matrices.push_back(group.matrix);
      continue;
    }
    if (!rows) rows = ToFloat8(x.flatten(0, -2));
    shape.back() = group.matrix.size(0);
    products[i] = Float8Product(*rows, group.float8->Rows(group.matrix), /*fast=*/true).view(shape);
  }
  Tensors others = matrices.empty() ? Tensors() : MatrixProducts(x, matrices);
  size_t next = 0;
  for (at::Tensor& product : products)
    if (!product.defined()) product = std::move(others[next++]);
  return products;
}

Tensors Forward(const at::Tensor& x, at::TensorList weights) {
  const std::vector<WeightGroup> groups = GroupWeights(x, weights);
  const Tensors products = GroupProducts(x, groups);
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
      GradientSink::Target{sum, product.added}.Take(WeightGradient(product.dy, x));
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

// Products of one x with several weights.
struct LinearOp {
  struct Inputs {
    at::Tensor x;
    Tensors weights;
  };
  struct Outputs {
    Tensors ys;  // one per weight
  };
  using Saved = Inputs;
};

// The products of a backward, and the indices of the layer's weights in each.
struct Products {
  std::vector<LinearProduct> products;
  std::vector<std::vector<size_t>> numbers;

  void Add(const BackwardOf<LinearOp>& call, const WeightGroup& group) {
    LinearProduct product = {
        .weights = {}, .matrix = group.matrix, .dy = {}, .wants_dweights = false};
    if (!c10::GradMode::is_enabled()) product.float8 = group.float8;
    Tensors dys;
    for (const size_t i : group.numbers) {
      product.weights.push_back(call.saved.weights[i]);
      product.wants_dweights = call.Wants(&LinearOp::Inputs::weights, i);
      dys.push_back(call.grads.ys[i].flatten(0, -2));
    }
    product.dy = ColumnsAsOne(dys);
    products.push_back(std::move(product));
    numbers.push_back(group.numbers);
  }
};

// A group is one product if all its outputs have a gradient and either all or none of its weights
// want one. If the backward is itself differentiated, nothing is joined, because each weight needs
// its own place in the graph.
Products FindProducts(const BackwardOf<LinearOp>& call) {
  Products result;
  const Tensors &dys = call.grads.ys, &weights = call.saved.weights;
  const auto wants = [&](size_t i) { return call.Wants(&LinearOp::Inputs::weights, i); };
  for (const WeightGroup& group : GroupWeights(call.saved.x, weights)) {
    const bool one = std::ranges::all_of(group.numbers, [&](size_t i) {
      return dys[i].defined() && wants(i) == wants(group.numbers[0]);
    });
    if (one && (group.numbers.size() == 1 || !c10::GradMode::is_enabled())) {
      result.Add(call, group);
      continue;
    }
    for (const size_t i : group.numbers)
      if (dys[i].defined())
        result.Add(call, {.numbers = {i}, .matrix = weights[i], .float8 = group.float8});
  }
  return result;
}

// How a backward returns the gradient of x.
struct InputGradient {
  bool wanted = false;
  ColumnSlice place = {};  // output buffer
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

LinearGrads UnroundedBackward(const at::Tensor& x, std::vector<LinearProduct> products,
                              bool widened, const InputGradient& of_x) {
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

// Returns the gradient of x from FP8 products: rows of dy and of W^T are rounded to e4m3. Each
// weight has scales of its own, and the terms are added in the order of the weights, so that
// nothing depends on which weights are adjacent in memory.
at::Tensor Float8InputGradient(const Products& found) {
  struct Term {
    at::Tensor dy, weight;
    Float8Weights* float8;
  };
  std::map<size_t, Term> terms;
  for (size_t i = 0; i < found.products.size(); ++i) {
    const LinearProduct& product = found.products[i];
    int64_t column = 0;
    for (size_t j = 0; product.float8 != nullptr && j < product.weights.size(); ++j) {
      const at::Tensor& weight = product.weights[j];
      terms[found.numbers[i][j]] = {.dy = product.dy.narrow(1, column, weight.size(0)),
                                    .weight = weight,
                                    .float8 = product.float8};
      column += weight.size(0);
    }
  }
  at::Tensor dx;
  for (const auto& [number, term] : terms) {
    const at::Tensor product =
        Float8Product(ToFloat8(term.dy), term.float8->Columns(term.weight), /*fast=*/false);
    dx.defined() ? dx.add_(product) : dx = product;
  }
  return dx;
}

// The gradients of FP8 weights are computed from dy and x as they are. Moves from found.products.
LinearGrads Backward(const at::Tensor& x, Products& found, bool widened,
                     const InputGradient& of_x) {
  std::vector<LinearProduct>& products = found.products;
  std::vector<size_t> in_float8, others;
  for (size_t i = 0; i < products.size(); ++i)
    (products[i].float8 != nullptr ? in_float8 : others).push_back(i);
  if (in_float8.empty()) return UnroundedBackward(x, std::move(products), widened, of_x);
  const auto take = [&](const std::vector<size_t>& numbers) {
    std::vector<LinearProduct> taken;
    for (const size_t i : numbers) taken.push_back(std::move(products[i]));
    return taken;
  };
  const at::Tensor float8_dx =
      of_x.wanted ? Float8InputGradient(found).view(x.sizes()) : at::Tensor();
  LinearGrads own = UnroundedBackward(x, take(in_float8), widened, {.wanted = false}), result;
  if (!others.empty()) result = UnroundedBackward(x, take(others), widened, of_x);
  std::vector<Tensors> dweights(in_float8.size() + others.size());
  for (size_t i = 0; i < in_float8.size(); ++i) dweights[in_float8[i]] = own.dweights[i];
  for (size_t i = 0; i < others.size(); ++i) dweights[others[i]] = result.dweights[i];
  result.dweights = std::move(dweights);
  if (float8_dx.defined()) result.dx.defined() ? result.dx.add_(float8_dx) : result.dx = float8_dx;
  return result;
}

// `dx` is the output buffer of the gradient of x.
LinearOp::Inputs SharedInputBackward(const BackwardOf<LinearOp>& call, const ColumnSlice& dx) {
  const auto& [x, weights] = call.saved;
  LinearOp::Inputs results = {.x = {}, .weights = Tensors(weights.size())};
  Products found = FindProducts(call);
  if (found.products.empty()) return results;
  LinearGrads grads = Backward(x, found, UsesWidened(x, weights),
                               {.wanted = call.Wants(&LinearOp::Inputs::x), .place = dx});
  results.x = grads.dx;
  for (size_t i = 0; i < grads.dweights.size(); ++i)
    for (size_t j = 0; j < grads.dweights[i].size(); ++j)
      results.weights[found.numbers[i][j]] = std::move(grads.dweights[i][j]);
  return results;
}

Tensors SharedInputProducts(const at::Tensor& x, const Tensors& weights, const ColumnSlice& dx) {
  const LinearOp::Inputs inputs = {.x = x, .weights = weights};
  const auto forward = [&]() -> ForwardOf<LinearOp> {
    return {.outputs = {.ys = Forward(x, weights)},
            .saved = inputs,
            .backward = [dx](const auto& call) { return SharedInputBackward(call, dx); }};
  };
  return Apply<LinearOp>(
             {.name = "Linear", .inputs = inputs, .undefined_grads = true, .forward = forward})
      .ys;
}

// How a product is split into parts.
struct SplitSpec {
  std::vector<int64_t> widths;
  bool one = false;       // true: the parts are columns of one product
  bool passes_x = false;  // true: x is an additional output
};

// A product whose columns are split into parts.
struct SplitLinearOp {
  struct Inputs {
    at::Tensor x, weight;
  };
  struct Outputs {
    at::Tensor x;  // undefined unless SplitSpec::passes_x
    Tensors parts;
  };
  using Saved = Inputs;
};

// Returns the gradient of x from its other consumers, or null if there is none.
const at::Tensor* UpstreamInputGradient(const BackwardOf<SplitLinearOp>& call) {
  return call.grads.x.defined() ? &call.grads.x : nullptr;
}

// Runs the backward of a split product when it is itself differentiated: one product per part of
// the weight's rows.
SplitLinearOp::Inputs DifferentiatedPartsBackward(const BackwardOf<SplitLinearOp>& call,
                                                  const SplitSpec& split) {
  const bool wants_dweight = call.Wants(&SplitLinearOp::Inputs::weight);
  BackwardOf<LinearOp> apart = {
      .saved = {.x = call.saved.x, .weights = call.saved.weight.split_with_sizes(split.widths, 0)},
      .grads = {.ys = call.grads.parts},
      .wanted = {call.Wants(&SplitLinearOp::Inputs::x)}};
  apart.wanted.insert(apart.wanted.end(), split.widths.size(), wants_dweight);
  LinearOp::Inputs results = SharedInputBackward(apart, /*dx=*/{});
  if (const at::Tensor* const others = UpstreamInputGradient(call))
    results.x = results.x.defined() ? results.x + *others : *others;
  if (!wants_dweight) return {.x = results.x, .weight = {}};
  for (size_t i = 0; i < results.weights.size(); ++i)
    if (!results.weights[i].defined()) results.weights[i] = at::zeros_like(apart.saved.weights[i]);
  return {.x = results.x, .weight = at::cat(results.weights, 0)};
}

// Uses one product if the parts are columns of one matrix and all have a gradient. Otherwise it
// uses one product per part, each accumulated in its rows of the weight's gradient.
SplitLinearOp::Inputs PartsBackward(const BackwardOf<SplitLinearOp>& call, const SplitSpec& split) {
  const auto& [x, weight] = call.saved;
  if (c10::GradMode::is_enabled()) return DifferentiatedPartsBackward(call, split);
  const bool wants_dweight = call.Wants(&SplitLinearOp::Inputs::weight);
  const Tensors& dys = call.grads.parts;
  const bool all = std::ranges::all_of(dys, [](const auto& dy) { return dy.defined(); });
  std::vector<LinearProduct> products;
  std::optional<WeightSums> sums;
  if (all && split.one) {
    Tensors rows;
    for (const at::Tensor& dy : dys) rows.push_back(dy.flatten(0, -2));
    products.push_back({.weights = {weight},
                        .matrix = weight,
                        .dy = ColumnsAsOne(rows),
                        .wants_dweights = wants_dweight});
  } else {
    if (wants_dweight) sums.emplace(Tensors{weight});
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
  const at::Tensor* const others = UpstreamInputGradient(call);
  if (products.empty())
    return {.x = others != nullptr ? *others : at::Tensor(),
            .weight = sums ? sums->Finish()[0] : at::Tensor()};
  LinearGrads grads =
      UnroundedBackward(x, std::move(products), UsesWidened(x, {weight}),
                        {.wanted = call.Wants(&SplitLinearOp::Inputs::x), .others = others});
  const at::Tensor dweight = sums            ? sums->Finish()[0]
                             : wants_dweight ? grads.dweights[0][0]
                                             : at::Tensor();
  return {.x = grads.dx, .weight = dweight};
}

// Adds gradient buffers to the outputs of one product. If nothing will be differentiated, there are
// none.
std::vector<LinearPart> WithColumns(const Tensors& outs) {
  std::vector<LinearPart> parts;
  std::vector<int64_t> widths;
  for (const at::Tensor& y : outs) widths.push_back(y.size(-1));
  const auto columns = outs[0].requires_grad() ? std::make_shared<SharedMatrix>(widths) : nullptr;
  for (const at::Tensor& y : outs)
    parts.push_back({.y = y, .gradient = {.columns = columns, .part = parts.size()}});
  return parts;
}

SplitLinearOp::Outputs SplitProduct(const at::Tensor& x, const at::Tensor& weight,
                                    const SplitSpec& split) {
  const auto forward = [&]() -> ForwardOf<SplitLinearOp> {
    return {.outputs = {.x = split.passes_x ? x : at::Tensor(),
                        .parts = split.one ? at::unsafe_split_with_sizes(
                                                 MatrixProducts(x, {weight})[0], split.widths, -1)
                                           : Forward(x, weight.split_with_sizes(split.widths, 0))},
            .saved = {.x = x, .weight = weight},
            .backward = [split](const auto& call) { return PartsBackward(call, split); }};
  };
  return Apply<SplitLinearOp>({.name = "LinearInParts",
                               .inputs = {.x = x, .weight = weight},
                               .undefined_grads = true,
                               .forward = forward});
}

struct SplitColumnsOp {
  struct Inputs {
    at::Tensor x;
  };
  struct Outputs {
    at::Tensor first, first_again;
    Tensors rest;
  };
  struct Saved {};
};

// `first` is the buffer of the first part's gradient.
at::Tensor SplitColumnsBackward(const SplitColumnsOp::Outputs& grads, const ColumnSlice& first) {
  at::Tensor sum;
  if (c10::GradMode::is_enabled()) {
    sum = grads.first + grads.first_again;
  } else {
    sum = first.EmptyLike(grads.first);
    at::add_out(sum, grads.first, grads.first_again);
  }
  Tensors columns = {sum.flatten(0, -2)};
  for (const at::Tensor& dy : grads.rest) columns.push_back(dy.flatten(0, -2));
  const at::Tensor all = ColumnsAsOne(columns);
  std::vector<int64_t> shape = sum.sizes().vec();
  shape.back() = all.size(1);
  return all.view(shape);
}

}  // namespace

std::vector<LinearPart> LinearInParts(const at::Tensor& x, const at::Tensor& weight,
                                      at::IntArrayRef widths) {
  const bool one = JoinsProducts(x);
  const Tensors outs = SplitProduct(x, weight, {.widths = widths.vec(), .one = one}).parts;
  if (one) return WithColumns(outs);
  std::vector<LinearPart> parts;
  for (const at::Tensor& y : outs) parts.push_back({.y = y});
  return parts;
}

std::vector<LinearPart> LinearInColumns(const at::Tensor& x, const at::Tensor& weight,
                                        at::IntArrayRef widths) {
  return WithColumns(SplitProduct(x, weight, {.widths = widths.vec(), .one = true}).parts);
}

PartsAndInput LinearAndInput(const at::Tensor& x, const at::Tensor& weight,
                             at::IntArrayRef widths) {
  const SplitLinearOp::Outputs outs =
      SplitProduct(x, weight, {.widths = widths.vec(), .one = true, .passes_x = true});
  return {.x = outs.x, .parts = WithColumns(outs.parts)};
}

SplitColumnsOutput SplitColumns(const at::Tensor& x, at::IntArrayRef widths) {
  const auto columns = std::make_shared<SharedMatrix>(widths.vec());
  const auto forward = [&]() -> ForwardOf<SplitColumnsOp> {
    const Tensors parts = at::unsafe_split_with_sizes(x, widths, -1);
    return {.outputs = {.first = parts[0],
                        .first_again = at::unsafe_split_with_sizes(x, widths, -1)[0],
                        .rest = {parts.begin() + 1, parts.end()}},
            .saved = {},
            .backward = [columns](const auto& call) -> SplitColumnsOp::Inputs {
              return {.x = SplitColumnsBackward(call.grads, {.columns = columns})};
            }};
  };
  const auto [first, first_again, rest] =
      Apply<SplitColumnsOp>({.name = "SplitColumns", .inputs = {.x = x}, .forward = forward});
  SplitColumnsOutput result = {.first = first, .first_again = first_again, .rest = {}};
  for (const at::Tensor& part : rest)
    result.rest.push_back(
        {.y = part, .gradient = {.columns = columns, .part = 1 + result.rest.size()}});
  return result;
}

std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights) {
  return SharedInputProducts(x, weights, /*dx=*/{});
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

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const ColumnSlice& dx) {
  return SharedInputProducts(x, {weight}, dx)[0];
}

}  // namespace halflife::ops
