// The products of a few rows on the CPU, for tests of the code around them: the operations one
// after another, with the CUDA kernel's order of sums.
#include <cmath>
#include <vector>

#include "kernels/common/cpu/math.h"
#include "kernels/linear/row_products_args.h"
#include "kernels/rows/swiglu_args.h"

namespace halflife::kernels::cpu {
namespace {

constexpr int kProductLanes = 32;  // of a warp

float RowDot(const Bf16* x, const Bf16* weight, int depth) {
  float sums[kProductLanes] = {};
  for (int k = 0; k < depth; ++k) {
    float& sum = sums[k / kProductPackElements % kProductLanes];
    sum = std::fma(Widen(x[k]), Widen(weight[k]), sum);
  }
  for (int count = kProductLanes / 2; count > 0; count /= 2)
    for (int lane = 0; lane < count; ++lane) sums[lane] += sums[lane + count];
  return sums[0];
}

// out [num_rows, columns] = x weight^T.
template <typename T>
void MultiplyRows(const RowProductsArgs& args, const Bf16* weight, int columns, T* out) {
  for (int row = 0; row < args.num_rows; ++row)
    for (int column = 0; column < columns; ++column)
      out[row * columns + column] = Narrow<T>(
          RowDot(args.x + row * args.x_stride, weight + int64_t{column} * args.depth, args.depth));
}

}  // namespace

void RowProducts(const RowProductsArgs& args_in) {
  RowProductsArgs args = args_in;
  std::vector<Bf16> normed;
  if (args.norm_weight != nullptr) {
    const int64_t num_rows = int64_t{args.num_rows} * args.norm_groups;
    std::vector<float> inverse_rms(num_rows);
    normed.resize(args.normed == nullptr ? int64_t{args.num_rows} * args.depth : 0);
    Bf16* const out = args.normed == nullptr ? normed.data() : args.normed;
    NormForward(NormRows<Bf16>{.x = args.x,
                               .residual = args.branch,
                               .gate = args.gate,
                               .gate_place = {args.norm_groups, args.gate_stride},
                               .gate_kind = args.gate_kind,
                               .weight = args.norm_weight,
                               .sum = args.sum,
                               .out = out,
                               .inverse_rms = inverse_rms.data(),
                               .num_rows = num_rows,
                               .dim = args.depth / args.norm_groups,
                               .eps = args.norm_eps},
                0, num_rows);
    args.x = out, args.x_stride = args.depth;
  }
  for (int i = 0; i < args.num_products; ++i) {
    const RowProduct& product = args.products[i];
    if (product.wide) {
      MultiplyRows(args, product.weight, product.columns, static_cast<float*>(product.out));
      continue;
    }
    auto* const out = static_cast<Bf16*>(product.out);
    MultiplyRows(args, product.weight, product.columns, out);
    if (product.up == nullptr) continue;
    const int64_t count = int64_t{args.num_rows} * product.columns;
    const std::vector<Bf16> gate(out, out + count);
    std::vector<Bf16> up(count);
    MultiplyRows(args, product.up, product.columns, up.data());
    SwiGluForward(
        SwiGluArgs<Bf16>{.gate = gate.data(), .up = up.data(), .out = out, .count = count}, 0,
        count);
  }
}

}  // namespace halflife::kernels::cpu
