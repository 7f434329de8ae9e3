// Rotary position encoding (Su et al., 2021), half layout: channel j turns with channel j + d/2 by
// the angle position * base^(-2j/d). Differentiable in x.
//
//   const RotaryTable table = MakeRotaryTable(slice.positions, head_dim, 10000);
//   q = ApplyRotary(q, table), k = ApplyRotary(k, table);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::kernels {

struct RotaryTable {
  at::Tensor cos,
      sin;  // [R, d/2] fp32, one row for each position between the smallest and the largest met
  at::Tensor rows;  // [B, T] int64: row of each token, 0 to R - 1 (checked on the CPU alone)
};

// positions [B, T] int64 >= 0; dim even.
RotaryTable MakeRotaryTable(const at::Tensor& positions, int64_t dim, double base);

// xPos (Sun et al., 2022, "A length-extrapolatable transformer"): besides turning, the pair j of a
// query at position n is multiplied by e^(rate_j (n - centre)) and that of a key by the reciprocal,
// so that their product at distance m - n decays by e^(rate_j (m - n)). rate_j = ln((2j/d + gamma)
// / (1 + gamma)) / scale_base <= 0: gamma and scale_base belong together. The gradient turns back
// and is multiplied by the same. Pairs are halves here too; the paper's neighbours 2j and 2j + 1
// are a permutation of the projections' rows.
struct XposConfig {
  double base = 10000, gamma = 0.4, scale_base = 512;
  // Cancels in every product of a query and a key that were made with the same; the middle of the
  // positions keeps both small.
  double centre = 0;
};
struct XposTables {
  RotaryTable q, k;
};
// positions [B, T] int64 >= 0, restarting with each document; dim even. Formed in fp64. Error (exit
// 2) for a position whose scale is beyond e^+-40, 16,347 tokens off the centre by default: a
// product of two such would leave fp32 (checked on the CPU alone).
XposTables MakeXposTables(const at::Tensor& positions, int64_t dim, const XposConfig& config);

// x [B, T, H, d] fp32, bf16 or fp64 -> the same shape and dtype.
at::Tensor ApplyRotary(const at::Tensor& x, const RotaryTable& table);

}  // namespace halflife::kernels
