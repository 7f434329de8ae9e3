// Rotary position encoding (Su et al., 2021), half layout: channel j turns with channel j + d/2 by
// the angle position * base^(-2j/d). Differentiable in x. Angles are formed in fp64: in fp32 those
// of a position of 100,000 would be off by 4e-3, and distances with them.
//
//   const RotaryTable table = MakeRotaryTable(slice.positions, head_dim, 10000);
//   const RotatedPair rotated = ApplyRotary(q, k, table);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace halflife::ops {

struct RotaryTable {
  // [R, d/2] fp32, one row for each position between the smallest and the largest met; fp64 serves
  // x of fp64 alone.
  at::Tensor cos, sin;
  at::Tensor rows;  // [B, T] int64: row of each token, 0 to R - 1 (checked on the CPU alone)
};

// positions [B, T] int64 >= 0; dim even; `dtype` of cos and sin.
RotaryTable MakeRotaryTable(const at::Tensor& positions, int64_t dim, double base,
                            at::ScalarType dtype = at::kFloat);

// The same with the pairs' own frequencies, radians a token, [d/2]; cos and sin are multiplied by
// `factor`. For positions that are interpolated or mixed (NTK-aware, YaRN).
RotaryTable MakeRotaryTable(const at::Tensor& positions, std::span<const double> frequencies,
                            double factor = 1, at::ScalarType dtype = at::kFloat);
// base^(-2j/d) of each pair.
std::vector<double> RotaryFrequencies(int64_t dim, double base);

// Tables of a batch's positions, each made when it is first asked for: the layers of a model turn
// by the same ones. Any thread.
class RotaryTables {
 public:
  // As MakeRotaryTable. A tensor of positions is known by itself, not by its values.
  RotaryTable Of(const at::Tensor& positions, int64_t dim, double base,
                 at::ScalarType dtype = at::kFloat);
  RotaryTable Of(const at::Tensor& positions, std::span<const double> frequencies,
                 double factor = 1, at::ScalarType dtype = at::kFloat);

 private:
  struct Entry {
    at::Tensor positions;
    std::vector<double> key;
    RotaryTable table;
  };
  template <typename Make>
  RotaryTable Find(const at::Tensor& positions, std::vector<double> key, const Make& make);

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

// x [B, T, H, d] fp32, bf16 or fp64 -> the same shape and dtype. Of fp64 the table may be, too:
// distances are then told to rounding of fp64.
at::Tensor ApplyRotary(const at::Tensor& x, const RotaryTable& table);
// q [B, T, H, d] and k [B, T, Hk, d] of one dtype, in one pass. Where the heads of a token are
// dense, its tokens may lie apart: q and k may be columns of one product.
struct RotatedPair {
  at::Tensor q, k;
};
RotatedPair ApplyRotary(const at::Tensor& q, const at::Tensor& k, const RotaryTable& table);

}  // namespace halflife::ops
