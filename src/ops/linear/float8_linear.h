// Products of linear layers in FP8: y = x W^T with both operands rounded to e4m3, one scale per row
// (core/float8.h), sums in fp32, one rounding to bf16.
//
// On a GPU the operands are e4m3 and LibTorch's scaled product multiplies them, which needs compute
// capability 8.9. On the CPU the operands are bf16 numbers that e4m3 represents, and the layer's
// own product multiplies them. Operands are rounded alike on both; only the order of sums differs.
//
// A weight that SetFloat8Weights() marks is multiplied in FP8 by Linear() and SharedInputLinear():
//
//   forward      y = x W^T    rows of x [tokens, D] and of W [out, D]
//   gradient     dx = dy W    rows of dy [tokens, out] and of W^T [D, out]
//   dW = dy^T x               not in FP8
//
// Several weights that share x have scales of their own in the gradient. No result depends on which
// of them are adjacent in memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace halflife::ops {

// A matrix [rows, width] rounded to e4m3, row by row.
struct Float8Matrix {
  at::Tensor values;   // on a GPU e4m3 codes, on the CPU the numbers in bf16
  at::Tensor factors;  // [rows, 1] fp32, on a GPU only: number = code x factor
};

// Rounds the rows of x [rows, width], bf16.
Float8Matrix ToFloat8(const at::Tensor& x);

// The FP8 copies of the weights of one model. An update of the weights makes them stale; each is
// then converted again by its next use. Thread-safe.
class Float8Weights {
 public:
  // If `keeps` is false, every use converts the weight: for weights whose memory changes between
  // uses (ZeRO stage 3).
  explicit Float8Weights(bool keeps) : keeps_(keeps) {}

  // Returns the rows of a weight [out, D], or those of its transpose [D, out]. For rows, the weight
  // may be several that are adjacent in memory. With `keeps`, memory that was returned is written
  // again after Invalidate() and never moves.
  Float8Matrix Rows(const at::Tensor& weight) { return Find(weight, /*transposed=*/false); }
  Float8Matrix Columns(const at::Tensor& weight) { return Find(weight, /*transposed=*/true); }

  // Call this after the weights have changed.
  void Invalidate();
  // Converts all stale copies that were used before, for recorded graphs, which read them.
  void Refresh();

 private:
  struct Copy {
    at::Tensor weight;
    Float8Matrix matrix;
    bool stale = true;
  };
  Float8Matrix Find(const at::Tensor& weight, bool transposed);

  const bool keeps_;
  std::mutex mutex_;
  // By address, rows and direction.
  std::map<std::pair<const void*, std::pair<int64_t, bool>>, Copy> copies_;
};

// Marks a weight [out, D] as one of `weights`; null removes the mark. The mark belongs to this
// tensor: views and copies of it are multiplied without FP8.
void SetFloat8Weights(const at::Tensor& weight, std::shared_ptr<Float8Weights> weights);
// Returns what marks the weight if its product with x [..., D] is an FP8 product: both are bf16,
// and there are rows. Else null.
Float8Weights* Float8WeightsFor(const at::Tensor& x, const at::Tensor& weight);

// Returns a b^T in bf16 on a GPU: a [rows, width], b [columns, width]. `fast` adds partial sums in
// the matrix unit's accumulators only, with about 14 bits.
at::Tensor ScaledProduct(const Float8Matrix& a, const Float8Matrix& b, bool fast);

}  // namespace halflife::ops
