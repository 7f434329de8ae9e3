#include "ops/linear/row_products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <span>

#include "core/error.h"
#include "kernels/linear/row_products_args.h"
#include "ops/linear/float8_linear.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

std::atomic<int> row_products_everywhere = 0;  // number of live RowProductsEverywhere

constexpr int64_t kPackBytes = kernels::kProductPackElements * sizeof(Bf16);

bool StartsAtPack(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kPackBytes == 0;
}

bool IsRowWeight(const at::Tensor& x, const at::Tensor& weight) {
  return weight.dim() == 2 && weight.scalar_type() == at::kBFloat16 &&
         weight.device() == x.device() && weight.is_contiguous() && weight.numel() > 0 &&
         weight.size(1) == x.size(-1) && StartsAtPack(weight) &&
         weight.size(0) <= std::numeric_limits<int>::max() / kernels::kMaxProductRows &&
         Float8WeightsFor(x, weight) == nullptr;
}

// Rows [rows, D] in the form that the kernel reads: x [..., D] itself, or a copy.
struct ProductRows {
  explicit ProductRows(const at::Tensor& x) : rows(x.flatten(0, -2)) {
    const bool packs = rows.stride(-1) == 1 && StartsAtPack(rows) &&
                       (rows.size(0) == 1 || rows.stride(0) % kernels::kProductPackElements == 0);
    if (!packs) rows = rows.clone(at::MemoryFormat::Contiguous);
  }
  const Bf16* data() const { return static_cast<const Bf16*>(rows.const_data_ptr()); }
  int64_t stride() const { return rows.size(0) == 1 ? rows.size(1) : rows.stride(0); }
  at::Tensor rows;
};

// Returns the result of one launch for at most kMaxRowProducts weights.
RowOutputs LaunchRowProducts(const RowInput& input, std::span<const RowWeight> weights) {
  const bool normed = input.norm.has_value();
  const ProductRows rows(normed ? input.x.contiguous() : input.x);
  const int64_t depth = rows.rows.size(1);
  RowOutputs outputs;
  kernels::RowProductsArgs args = {.num_rows = static_cast<int>(rows.rows.size(0)),
                                   .depth = static_cast<int>(depth),
                                   .x = rows.data(),
                                   .x_stride = rows.stride(),
                                   .num_products = static_cast<int>(weights.size())};
  std::optional<ProductRows> branch, gate;
  if (normed) {
    const at::Tensor& norm_weight = input.norm->weight;
    outputs.normed = at::empty(input.x.sizes(), input.x.options());
    args.norm_weight = Elements<float>(norm_weight);
    args.norm_eps = static_cast<float>(input.norm->eps);
    args.norm_groups = static_cast<int>(depth / norm_weight.size(0));
    args.normed = MutableElements<Bf16>(outputs.normed);
  }
  if (input.gate.defined()) {
    gate.emplace(input.gate);
    args.gate = gate->data(), args.gate_stride = gate->stride(), args.gate_kind = input.gate_kind;
  }
  if (input.branch.defined()) {
    branch.emplace(input.branch.contiguous());
    outputs.sum = at::empty(input.x.sizes(), input.x.options());
    args.branch = branch->data();
    args.sum = MutableElements<Bf16>(outputs.sum);
  }
  std::vector<int64_t> shape = input.x.sizes().vec();
  for (size_t i = 0; i < weights.size(); ++i) {
    const RowWeight& weight = weights[i];
    shape.back() = weight.weight.size(0);
    outputs.ys.push_back(at::empty(shape, input.x.options().dtype(weight.dtype)));
    args.products[i] = {.weight = Elements<Bf16>(weight.weight),
                        .up = Elements<Bf16>(weight.up),
                        .out = outputs.ys.back().mutable_data_ptr(),
                        .columns = static_cast<int>(shape.back()),
                        .wide = weight.dtype == at::kFloat};
  }
  RunOn(
      rows.rows, [&] { kernels::cpu::RowProducts(args); },
      [&](auto stream) { kernels::cuda::RowProducts(args, stream); });
  return outputs;
}

}  // namespace

RowProductsEverywhere::RowProductsEverywhere() { ++row_products_everywhere; }
RowProductsEverywhere::~RowProductsEverywhere() { --row_products_everywhere; }

bool HasRowProducts(const at::Tensor& x, at::TensorList weights) {
  return c10::InferenceMode::is_enabled() && (RunsOnCuda(x) || row_products_everywhere > 0) &&
         x.scalar_type() == at::kBFloat16 && x.dim() >= 2 && x.numel() > 0 &&
         x.size(-1) % kernels::kProductPackElements == 0 &&
         x.numel() / x.size(-1) <= kernels::kMaxProductRows &&
         std::ranges::all_of(weights, [&](const at::Tensor& w) { return IsRowWeight(x, w); });
}

bool HasNormedRowProducts(const RowInput& input, at::TensorList weights) {
  if (!input.norm.has_value() || !HasRowProducts(input.x, weights)) return false;
  const int64_t depth = input.x.size(-1), width = input.norm->weight.size(0);
  return input.norm->weight.is_contiguous() && StartsAtPack(input.norm->weight) &&
         depth <= kernels::kMaxNormedDepth && width % kernels::kProductPackElements == 0 &&
         depth % width == 0 && depth / width <= kernels::kMaxNormGroups;
}

RowOutputs RowProducts(const RowInput& input, const std::vector<RowWeight>& weights) {
  HL_CHECK(!weights.empty() &&
               (input.norm.has_value() || (!input.branch.defined() && !input.gate.defined())),
           "products of rows with ", weights.size(),
           " weights. Use at least one weight, and a branch or a gate only with a norm.");
  HL_CHECK(!input.norm.has_value() ||
               (input.norm->weight.dim() == 1 && input.norm->weight.scalar_type() == at::kFloat &&
                input.x.size(-1) % input.norm->weight.size(0) == 0 &&
                input.norm->weight.device() == input.x.device()),
           "a norm of ", Describe(input.x), " with weight ", Describe(input.norm->weight),
           ". Use an fp32 weight [V] on the same device, where V divides the channels of a row.");
  for (const at::Tensor& other : {input.branch, input.gate})
    HL_CHECK(!other.defined() || IsLike(input.x, other), "a norm of ", Describe(input.x), " with ",
             Describe(other), ". Use one shape, dtype and device for x, branch and gate.");
  RowOutputs outputs;
  RowInput now = input;
  const std::span<const RowWeight> all = weights;
  for (size_t first = 0; first < all.size(); first += kernels::kMaxRowProducts) {
    const size_t count = std::min<size_t>(kernels::kMaxRowProducts, all.size() - first);
    RowOutputs some = LaunchRowProducts(now, all.subspan(first, count));
    if (some.sum.defined()) outputs.sum = some.sum;
    if (some.normed.defined()) outputs.normed = some.normed, now = {.x = some.normed};
    std::ranges::move(some.ys, std::back_inserter(outputs.ys));
  }
  return outputs;
}

}  // namespace halflife::ops
