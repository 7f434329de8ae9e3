#include "ops/linear/linear_internal.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/error.h"
#include "kernels/common/cpu/instruction_set.h"
#include "kernels/linear/linear_products.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

// The range of weight shapes in which the weight-gradient kernel was measured to be faster than
// BLAS, by the smaller side of the weight.
constexpr int64_t kMinGradientTokens = 512;
struct GradientSides {
  int64_t min, max;
};
GradientSides SidesOfOwnGradient() {
  if (kernels::cpu::InstructionSetInUse() == kernels::cpu::InstructionSet::kAvx512 &&
      !kernels::cpu::IsAmd())
    return {64, 384};
  return {16, std::numeric_limits<int64_t>::max()};
}

bool HasOwnKernel(const at::Tensor& dy, const at::Tensor& x) {
  const auto fits = [](const at::Tensor& matrix) {
    return matrix.is_cpu() && matrix.scalar_type() == at::kFloat;
  };
  const int64_t side = std::min(dy.size(1), x.size(1));
  const GradientSides sides = SidesOfOwnGradient();
  return kernels::HasWeightGradient() && fits(dy) && fits(x) && dy.size(0) >= kMinGradientTokens &&
         side >= sides.min && side <= sides.max;
}

void RunOwnKernel(const at::Tensor& dweight, const at::Tensor& dy, const at::Tensor& x) {
  const at::Tensor dy_rows = dy.contiguous(), x_rows = x.contiguous();
  kernels::WeightGradientArgs args = {.num_tokens = dy.size(0),
                                      .out_features = dy.size(1),
                                      .in_features = x.size(1),
                                      .dy = Elements<float>(dy_rows),
                                      .x = Elements<float>(x_rows),
                                      .dweight = MutableElements<float>(dweight)};
  const at::Tensor workspace =
      at::empty({kernels::WeightGradientWorkspaceFloats(args)}, dweight.options());
  args.workspace = MutableElements<float>(workspace);
  WeightGradient(args);
}

}  // namespace

at::Tensor WeightGradient(const at::Tensor& dy, const at::Tensor& x) {
  HL_CHECK(dy.dim() == 2 && x.dim() == 2 && dy.size(0) == x.size(0), "a weight's gradient from dy ",
           Describe(dy), " and x ", Describe(x), ". Use [tokens, out] and [tokens, D].");
  const bool differentiated =
      c10::GradMode::is_enabled() && (dy.requires_grad() || x.requires_grad());
  if (differentiated || !HasOwnKernel(dy, x)) return at::mm(dy.t(), x);
  const at::Tensor dweight = at::empty({dy.size(1), x.size(1)}, x.options().requires_grad(false));
  RunOwnKernel(dweight, dy, x);
  return dweight;
}

bool HasWideProducts(const at::Tensor& x) {
  return x.is_cuda() || x.scalar_type() != at::kBFloat16;
}

void SumWeightGradient(at::Tensor& sum, bool added, const at::Tensor& dy, const at::Tensor& x) {
  if (sum.scalar_type() != x.scalar_type()) {
    added ? at::addmm_out(sum, sum, dy.t(), x, sum.scalar_type())
          : at::mm_out(sum, dy.t(), x, sum.scalar_type());
  } else if (!HasOwnKernel(dy, x)) {
    added ? sum.addmm_(dy.t(), x) : at::mm_out(sum, dy.t(), x);
  } else if (added) {
    sum.add_(WeightGradient(dy, x));
  } else {
    RunOwnKernel(sum, dy, x);
  }
}

}  // namespace halflife::ops
