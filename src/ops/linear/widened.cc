#include "ops/linear/linear_internal.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/linear/linear_products.h"
#include "ops/torch/dispatch.h"

namespace halflife::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

// Rows that are converted at a time. Small enough for their fp32 copies to stay in the caches;
// fixed, so that the sums over blocks do not depend on the number of threads.
constexpr int64_t kBlockRows = 512;
// With fewer rows (decoding), converting the weights would cost more than the product.
constexpr int64_t kMinWidenedRows = 64;
constexpr int64_t kGrain = 1 << 15;

// Returns true if a bf16 product is faster than an fp32 product on this machine. On Intel cores the
// bf16 dot product of the vector unit (AVX512-BF16) takes as many slots as the fp32 FMAs that it
// replaces, and oneDNN's kernels around it reach half of MKL's fp32 rate. AMX tiles are an order of
// magnitude faster, and AMD cores run the instruction at twice the rate of an FMA. Both require
// AVX-512: if a narrower instruction set was requested, the machine is treated as one without them.
bool HasFastBf16() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (kernels::cpu::InstructionSetInUse() != kernels::cpu::InstructionSet::kAvx512) return false;
  return __builtin_cpu_supports("amx-bf16") ||
         (kernels::cpu::IsAmd() && __builtin_cpu_supports("avx512bf16"));
#else
  return true;
#endif
}

// Both tensors are contiguous.
void WidenTo(const at::Tensor& wide, const at::Tensor& narrow) {
  const auto* const x = Elements<Bf16>(narrow);
  auto* const y = MutableElements<float>(wide);
  at::parallel_for(0, narrow.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::cpu::WidenRange(x + begin, y + begin, end - begin);
  });
}
void NarrowTo(const at::Tensor& narrow, const at::Tensor& wide) {
  const auto* const x = Elements<float>(wide);
  auto* const y = MutableElements<Bf16>(narrow);
  at::parallel_for(0, wide.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::cpu::NarrowRange(x + begin, y + begin, end - begin);
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

}  // namespace

bool UsesWidened(const at::Tensor& x, at::TensorList weights) {
  if (!x.is_cpu() || x.scalar_type() != at::kBFloat16 || x.numel() == 0) return false;
  for (const at::Tensor& weight : weights)
    if (weight.scalar_type() != at::kBFloat16) return false;
  return x.numel() / x.size(-1) >= kMinWidenedRows && !HasFastBf16();
}

std::vector<at::Tensor> WidenedForward(const at::Tensor& x_in, at::TensorList weights) {
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

LinearGrads WidenedBackward(const LinearGradCall& call) {
  const int64_t num_rows = call.x.size(0), block_rows = std::min(kBlockRows, num_rows);
  const size_t count = call.products.size();
  LinearGrads result;
  result.dweights.resize(count);
  std::vector<std::optional<WeightSums>> sums(count);
  std::vector<std::optional<RightOperand>> wide_weights(count);  // for dx
  std::vector<at::Tensor> douts;
  std::vector<WideBlock> wide_douts;
  for (size_t i = 0; i < count; ++i) {
    const LinearProduct& product = call.products[i];
    douts.push_back(product.dy.contiguous());
    wide_douts.emplace_back(block_rows, product.matrix.size(0), call.x);
    if (call.wants_dx) wide_weights[i].emplace(product.matrix.to(at::kFloat), /*transposed=*/false);
    if (product.sum.defined()) {
      sums[i].emplace(product.sum, product.added);
    } else if (product.wants_dweights) {
      sums[i].emplace(product.weights);
    }
  }
  if (call.wants_dx) result.dx = at::empty_like(call.x);
  const WideBlock wide_x(block_rows, call.x.size(1), call.x),
      wide_dx(block_rows, call.x.size(1), call.x);
  for (int64_t first = 0; first < num_rows; first += block_rows) {
    const int64_t rows = std::min(block_rows, num_rows - first);
    const at::Tensor x_block = wide_x.Load(call.x, first, rows);
    at::Tensor dx_block = wide_dx.Rows(rows);
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor dout = wide_douts[i].Load(douts[i], first, rows);
      // beta = 0 overwrites uninitialized memory, even if it holds NaN.
      if (sums[i])
        sums[i]->matrix().addmm_(dout.t(), x_block, first == 0 && !sums[i]->added() ? 0 : 1);
      if (call.wants_dx) wide_weights[i]->Multiply(dout, dx_block, /*add=*/i > 0);
    }
    if (call.wants_dx) NarrowTo(result.dx.narrow(0, first, rows), dx_block);
  }
  for (size_t i = 0; i < count; ++i)
    if (sums[i]) result.dweights[i] = sums[i]->Finish();
  return result;
}

}  // namespace halflife::ops
