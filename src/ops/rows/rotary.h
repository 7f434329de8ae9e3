// Rotary position encoding (Su et al., 2021), half layout: channels j and j + r/2 are rotated by
// the angle position * base^(-2j/r). Usually r is d, the width of a head; with a smaller r, the
// channels from r on are unchanged (partial rotation). Differentiable in x. Angles are computed in
// fp64: in fp32 they would be off by 4e-3 at position 100,000, and relative positions with them.
//
//   const RotaryTable table = MakeRotaryTable(slice.positions, head_dim, 10000);
//   const RotatedPair rotated = ApplyRotary(q, k, table);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct RotaryTable {
  // [R, r/2] fp32, one row per position between the smallest and the largest that occur. fp64
  // tables are only supported for fp64 x.
  at::Tensor cos, sin;
  // [B, T] int64: the table row of each token, 0 to R - 1 (checked only on the CPU)
  at::Tensor rows;
};

// positions [B, T] int64 >= 0; dim must be even; `dtype` is that of cos and sin.
RotaryTable MakeRotaryTable(const at::Tensor& positions, int64_t dim, double base,
                            at::ScalarType dtype = at::kFloat);

// The same with given frequencies [r/2] in radians per token. cos and sin are multiplied by
// `factor`. For interpolated or mixed frequencies (NTK-aware, YaRN).
RotaryTable MakeRotaryTable(const at::Tensor& positions, std::span<const double> frequencies,
                            double factor = 1, at::ScalarType dtype = at::kFloat);
// Returns base^(-2j/d) for each pair of channels, j < d/2. An odd d is rounded up to whole pairs.
std::vector<double> RotaryFrequencies(int64_t dim, double base);

// Caches the tables of a batch's positions, because all layers of a model use the same ones.
// Thread-safe.
class RotaryTables {
 public:
  // Returns the result of MakeRotaryTable(). The cache compares the identity of `positions`, not
  // its values.
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

// x [B, T, H, d] fp32, bf16 or fp64 -> the same shape and dtype. For fp64 the table may be fp64
// too, so that relative positions are exact to fp64 rounding.
at::Tensor ApplyRotary(const at::Tensor& x, const RotaryTable& table);
// Rotates q [B, T, H, d] and k [B, T, Hk, d] of one dtype in one pass. The heads of a token must be
// dense, but tokens may have any constant stride: q and k may be columns of one product.
struct RotatedPair {
  at::Tensor q, k;
};
// Buffers of the gradients of q and k.
struct RotaryGradients {
  ColumnSlice q = {}, k = {};
};
RotatedPair ApplyRotary(const at::Tensor& q, const at::Tensor& k, const RotaryTable& table,
                        const RotaryGradients& gradients = {});

}  // namespace halflife::ops
