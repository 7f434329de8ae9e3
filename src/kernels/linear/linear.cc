#include "kernels/linear/linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/error.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/vectorised.h"
#include "kernels/linear/right_operand.h"
#include "kernels/linear/weight_gradient.h"
#include "kernels/torch/autograd.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

// Rows that the widened form converts at a time: few enough for their fp32 copies to stay in the
// caches, and fixed, so that the sums over blocks do not depend on the number of threads.
constexpr int64_t kBlockRows = 512;
// Below this many rows the weights' conversion would cost more than the matmul (decoding).
constexpr int64_t kMinWidenedRows = 64;
constexpr int64_t kGrain = 1 << 15;
// Where the kernel for weight gradients takes less time than BLAS, measured: the smaller of a
// weight's sides.
constexpr int64_t kMinGradientTokens = 512;
struct GradientSides {
  int64_t min, max;
};
GradientSides SidesOfOwnGradient() {
  if (cpu::InstructionSetInUse() == cpu::InstructionSet::kAvx512 && !cpu::IsAmd()) return {64, 384};
  return {16, std::numeric_limits<int64_t>::max()};
}

// Whether a matmul of bf16 is faster than one of fp32 here. A vector unit's bf16 dot product
// (AVX512-BF16) takes as many slots on Intel's cores as the fp32 FMAs that it replaces, and
// oneDNN's kernels around it reach half of MKL's fp32 rate; AMX tiles are an order faster, and
// AMD's cores run the instruction at twice the rate of an FMA. Either comes with AVX-512: who asks
// for a narrower instruction set gets what a machine without them does.
bool HasFastBf16() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (cpu::InstructionSetInUse() != cpu::InstructionSet::kAvx512) return false;
  return __builtin_cpu_supports("amx-bf16") ||
         (cpu::IsAmd() && __builtin_cpu_supports("avx512bf16"));
#else
  return true;
#endif
}

bool UsesWidened(const at::Tensor& x, at::TensorList weights) {
  if (!x.is_cpu() || x.scalar_type() != at::kBFloat16 || x.numel() == 0) return false;
  for (const at::Tensor& weight : weights)
    if (weight.scalar_type() != at::kBFloat16) return false;
  return x.numel() / x.size(-1) >= kMinWidenedRows && !HasFastBf16();
}

HL_INLINE void WidenRange(const Bf16* __restrict x, float* __restrict y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = Widen(x[i]);
}
HL_INLINE void NarrowRange(const float* __restrict x, Bf16* __restrict y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = Narrow<Bf16>(x[i]);
}

// Both contiguous.
void WidenTo(const at::Tensor& wide, const at::Tensor& narrow) {
  const auto* const x = Elements<Bf16>(narrow);
  auto* const y = MutableElements<float>(wide);
  at::parallel_for(0, narrow.numel(), kGrain, [&](int64_t begin, int64_t end) {
    cpu::RunVectorised([&]() HL_LAMBDA_INLINE { WidenRange(x + begin, y + begin, end - begin); });
  });
}
void NarrowTo(const at::Tensor& narrow, const at::Tensor& wide) {
  const auto* const x = Elements<float>(wide);
  auto* const y = MutableElements<Bf16>(narrow);
  at::parallel_for(0, wide.numel(), kGrain, [&](int64_t begin, int64_t end) {
    cpu::RunVectorised([&]() HL_LAMBDA_INLINE { NarrowRange(x + begin, y + begin, end - begin); });
  });
}

// fp32 memory for one block of rows of a contiguous bf16 matrix.
class WideBlock {
 public:
  WideBlock(int64_t rows, int64_t width, const at::Tensor& like)
      : memory_(at::empty({rows, width}, like.options().dtype(at::kFloat))) {}
  at::Tensor Rows(int64_t count) const { return memory_.narrow(0, 0, count); }
  at::Tensor Load(const at::Tensor& matrix, int64_t first, int64_t count) const {
    const at::Tensor wide = Rows(count);
    WidenTo(wide, matrix.narrow(0, first, count));
    return wide;
  }

 private:
  at::Tensor memory_;
};

Tensors WidenedForward(const at::Tensor& x_in, at::TensorList weights) {
  const at::Tensor x = x_in.flatten(0, -2).contiguous();  // [tokens, D]
  const int64_t num_rows = x.size(0), block_rows = std::min(kBlockRows, num_rows);
  std::vector<RightOperand> wide_weights;
  std::vector<WideBlock> wide_outs;
  Tensors outs;
  for (const at::Tensor& weight : weights) {
    wide_weights.emplace_back(weight.to(at::kFloat), /*transposed=*/true);
    wide_outs.emplace_back(block_rows, weight.size(0), x);
    outs.push_back(at::empty({num_rows, weight.size(0)}, x.options()));
  }
  const WideBlock wide_x(block_rows, x.size(1), x);
  for (int64_t first = 0; first < num_rows; first += block_rows) {
    const int64_t count = std::min(block_rows, num_rows - first);
    const at::Tensor block = wide_x.Load(x, first, count);
    for (size_t i = 0; i < outs.size(); ++i) {
      at::Tensor wide = wide_outs[i].Rows(count);
      wide_weights[i].Multiply(block, wide);
      NarrowTo(outs[i].narrow(0, first, count), wide);
    }
  }
  std::vector<int64_t> shape = x_in.sizes().vec();
  for (at::Tensor& out : outs) {
    shape.back() = out.size(1);
    out = out.view(shape);
  }
  return outs;
}

struct LinearGrads {
  at::Tensor dx;
  std::vector<at::Tensor> dweights;
};

// Of the outputs that have a gradient. Saved are x and the weights, which are the inputs.
LinearGrads WidenedBackward(const BackwardCall& call) {
  const Tensors &saved = call.saved, &grads = call.grads;
  const at::Tensor x = saved[0].flatten(0, -2).contiguous();
  const int64_t num_rows = x.size(0), block_rows = std::min(kBlockRows, num_rows);
  LinearGrads result;
  result.dweights.resize(grads.size());
  std::vector<at::Tensor> douts(grads.size());
  std::vector<std::optional<RightOperand>> wide_weights(grads.size());  // for dx
  std::vector<WideBlock> wide_douts;
  bool any = false;
  for (size_t i = 0; i < grads.size(); ++i) {
    wide_douts.emplace_back(grads[i].defined() ? block_rows : 0, saved[1 + i].size(0), x);
    if (!grads[i].defined()) continue;
    any = true;
    douts[i] = grads[i].flatten(0, -2).contiguous();
    const at::Tensor weight = saved[1 + i].to(at::kFloat);
    if (call.wanted[0]) wide_weights[i].emplace(weight, /*transposed=*/false);
    if (call.wanted[1 + i]) result.dweights[i] = at::empty_like(weight);
  }
  if (!any) return result;
  if (call.wanted[0]) result.dx = at::empty_like(x);
  const WideBlock wide_x(block_rows, x.size(1), x), wide_dx(block_rows, x.size(1), x);
  for (int64_t first = 0; first < num_rows; first += block_rows) {
    const int64_t count = std::min(block_rows, num_rows - first);
    const at::Tensor x_block = wide_x.Load(x, first, count);
    at::Tensor dx_block = wide_dx.Rows(count);
    bool added = false;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      const at::Tensor dout = wide_douts[i].Load(douts[i], first, count);
      // beta 0 overwrites whatever the memory held
      if (call.wanted[1 + i]) result.dweights[i].addmm_(dout.t(), x_block, first == 0 ? 0 : 1);
      if (call.wanted[0]) wide_weights[i]->Multiply(dout, dx_block, added);
      added = true;
    }
    if (call.wanted[0]) NarrowTo(result.dx.narrow(0, first, count), dx_block);
  }
  for (at::Tensor& dweight : result.dweights)
    if (dweight.defined()) dweight = dweight.to(at::kBFloat16);
  return result;
}

at::Tensor PlainForward(const at::Tensor& x, const at::Tensor& weight) {
  if (!HasOwnMatmul(x, weight)) return at::linear(x, weight);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor rows = at::empty({x.numel() / x.size(-1), weight.size(0)}, x.options());
  RightOperand(weight, /*transposed=*/true).Multiply(x.flatten(0, -2).contiguous(), rows);
  return rows.view(shape);
}

LinearGrads PlainBackward(const BackwardCall& call) {
  const Tensors &saved = call.saved, &grads = call.grads;
  const at::Tensor x = saved[0].flatten(0, -2).contiguous();  // [tokens, D]
  LinearGrads result;
  result.dweights.resize(grads.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    const at::Tensor& weight = saved[1 + i];
    const at::Tensor dy = grads[i].flatten(0, -2);
    if (call.wanted[1 + i]) result.dweights[i] = WeightGradient(dy, x);
    if (!call.wanted[0]) continue;
    if (HasOwnMatmul(dy, weight)) {
      const bool added = result.dx.defined();
      if (!added) result.dx = at::empty_like(x);
      RightOperand(weight, /*transposed=*/false).Multiply(dy.contiguous(), result.dx, added);
    } else if (result.dx.defined()) {
      result.dx.addmm_(dy, weight);
    } else {
      result.dx = at::mm(dy, weight);
    }
  }
  return result;
}

Tensors SharedInputBackward(const BackwardCall& call) {
  const at::TensorList weights = at::TensorList(call.saved).slice(1);
  LinearGrads result =
      UsesWidened(call.saved[0], weights) ? WidenedBackward(call) : PlainBackward(call);
  Tensors results(1 + call.grads.size());
  if (result.dx.defined()) results[0] = result.dx.view(call.saved[0].sizes());
  std::move(result.dweights.begin(), result.dweights.end(), results.begin() + 1);
  return results;
}

}  // namespace

std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights) {
  Tensors inputs = {x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  const auto forward = [&]() -> Forwarded {
    Tensors outs;
    if (UsesWidened(x, weights)) {
      outs = WidenedForward(x, weights);
    } else {
      for (const at::Tensor& weight : weights) outs.push_back(PlainForward(x, weight));
    }
    return {.outputs = outs, .saved = inputs, .backward = SharedInputBackward};
  };
  return Apply({.name = "Linear", .inputs = inputs, .undefined_grads = true, .forward = forward});
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight) {
  return SharedInputLinear(x, {weight})[0];
}

at::Tensor WeightGradient(const at::Tensor& dy, const at::Tensor& x) {
  HL_CHECK(dy.dim() == 2 && x.dim() == 2 && dy.size(0) == x.size(0), "a weight's gradient from dy ",
           Describe(dy), " and x ", Describe(x), "; [tokens, out] and [tokens, D] would work");
  const int64_t side = std::min(dy.size(1), x.size(1));
  const GradientSides sides = SidesOfOwnGradient();
  const bool fits = dy.is_cpu() && x.is_cpu() && dy.scalar_type() == at::kFloat &&
                    x.scalar_type() == at::kFloat && dy.size(0) >= kMinGradientTokens &&
                    side >= sides.min && side <= sides.max;
  const bool differentiated =
      c10::GradMode::is_enabled() && (dy.requires_grad() || x.requires_grad());
  if (!fits || differentiated || !HasWeightGradient()) return at::mm(dy.t(), x);
  const at::Tensor dy_rows = dy.contiguous(), x_rows = x.contiguous();
  const at::Tensor dweight = at::empty({dy.size(1), x.size(1)}, x.options());
  WeightGradientArgs args = {.num_tokens = dy.size(0),
                             .out_features = dy.size(1),
                             .in_features = x.size(1),
                             .dy = Elements<float>(dy_rows),
                             .x = Elements<float>(x_rows),
                             .dweight = MutableElements<float>(dweight)};
  const at::Tensor workspace = at::empty({WeightGradientWorkspaceFloats(args)}, x.options());
  args.workspace = MutableElements<float>(workspace);
  WeightGradient(args);
  return dweight;
}

}  // namespace halflife::kernels
