// Internal header of linear layers: the products of their forward and backward, and the buffers of
// weight gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "ops/torch/gradient_sink.h"

namespace halflife::ops {

// ---- The product of a weight's gradient, dy^T x, by the fastest method for the operands ----

// Returns dy^T x for dy [tokens, out] and x [tokens, D], in their dtype. fp32 on the CPU uses the
// kernel of linear_products.h if that is faster than BLAS and the product need not be
// differentiable.
at::Tensor WeightGradient(const at::Tensor& dy, const at::Tensor& x);

// Returns true if products of such operands can be accumulated in memory of the compute dtype.
// False only for bf16 on the CPU, where BLAS rounds its result to bf16.
bool HasWideProducts(const at::Tensor& x);
// Computes sum = dy^T x or, if `added`, sum += dy^T x. sum [out, D] is contiguous and of the
// compute dtype; HasWideProducts(x) must hold. Nothing is recorded for autograd.
void SumWeightGradient(at::Tensor& sum, bool added, const at::Tensor& dy, const at::Tensor& x);

// Output buffers for the gradients of weights in a backward: the sinks of their owner
// (ops/torch/gradient_sink.h), else new memory that is returned to autograd.
class WeightSums {
 public:
  // `weights` are [rows_i, D], at least one. Each is a leaf with a sink, or any other tensor.
  explicit WeightSums(std::vector<at::Tensor> weights);
  // For rows whose buffer the caller provides. Finish() then has nothing to do.
  WeightSums(at::Tensor target, bool added) : matrix_(std::move(target)), added_(added) {}

  // [sum of rows, D]: the gradients, stacked by rows. fp64 for fp64 weights, else fp32. `added`:
  // add to its contents.
  at::Tensor& matrix() { return matrix_; }
  bool added() const { return added_; }
  // Call once the matrix is written. Returns one gradient per weight in its dtype, undefined if a
  // sink has it.
  std::vector<at::Tensor> Finish();

 private:
  bool UsesTargets();

  std::vector<at::Tensor> weights_;
  std::vector<GradientSink*> sinks_;           // one per weight, or empty
  std::vector<GradientSink::Target> targets_;  // one per weight, or empty
  at::Tensor matrix_;
  bool in_targets_ = false, added_ = false;
};

// A weight as the right operand of fp32 products on the CPU. If the current instruction set has a
// kernel (linear_products.h), the weight is packed once into that kernel's layout. Otherwise BLAS
// is used.
class RightOperand {
 public:
  // `matrix` is [depth, columns] or, if transposed, [columns, depth]. The object keeps a reference.
  RightOperand(const at::Tensor& matrix, bool transposed);

  // Computes out [rows, columns] = a [rows, depth] B, or out += a B. Both are contiguous.
  void Multiply(const at::Tensor& a, at::Tensor& out, bool add = false) const;

 private:
  at::Tensor matrix_;  // [depth, columns], a view
  at::Tensor panels_;  // undefined: use BLAS
};

// Returns true if the product of rows [..., D] with a weight should use this class: fp32, enough
// rows, and no gradient is recorded.
bool HasOwnMatmul(const at::Tensor& rows, const at::Tensor& weight);

// Returns true if the product of rows [..., D] with a weight [N, D] should be SkinnyMatmul(): fp32
// or bf16 on the CPU, few rows, and inference mode. Training does not use it, because the bits of
// its products must not change with the number of a rank's rows.
bool HasSkinnyMatmul(const at::Tensor& rows, const at::Tensor& weight);
// Returns rows weight^T, [..., N], in `dtype`. Sums are fp32 and are rounded once. The bits of a
// row do not depend on the other rows.
at::Tensor SkinnyMatmul(const at::Tensor& rows, const at::Tensor& weight, at::ScalarType dtype);

// ---- Inputs and results of a backward, for every dtype and device ----

class Float8Weights;

// y = x matrix^T, for one weight or several that are adjacent in memory.
struct LinearProduct {
  std::vector<at::Tensor> weights;  // [out_i, D]; their rows form `matrix`
  at::Tensor matrix;                // [sum of outs, D]
  at::Tensor dy;                    // [tokens, sum of outs]
  bool wants_dweights = false;
  // Output buffer for the gradient of `matrix`, if the caller accumulates it; else undefined.
  // `added`: add to its contents.
  at::Tensor sum = {};
  bool added = false;
  Float8Weights* float8 = nullptr;  // not null: dx is an FP8 product
};
struct LinearGradCall {
  at::Tensor x;  // [tokens, D], elements of a row adjacent
  std::vector<LinearProduct> products;
  bool wants_dx = false;
  // Output buffer of dx, [tokens, D]; undefined: allocate. `dx_added`: add to its contents.
  at::Tensor dx = {};
  bool dx_added = false;
};
struct LinearGrads {
  at::Tensor dx;  // [tokens, D], summed over products; undefined if not computed
  // [product][weight]; undefined if a sink has it or it is not computed.
  std::vector<std::vector<at::Tensor>> dweights;
};

// ---- A bf16 linear layer for CPUs with slow bf16 products ----
//
// It multiplies in fp32, one block of rows at a time, so that the fp32 copies stay in the caches.
// Sums are fp32 and are rounded once.

// Returns true if rows x [..., D] should be multiplied this way.
bool UsesWidened(const at::Tensor& x, at::TensorList weights);

// x [..., D], weights [out_i, D] -> [..., out_i].
std::vector<at::Tensor> WidenedForward(const at::Tensor& x, at::TensorList weights);
LinearGrads WidenedBackward(const LinearGradCall& call);

}  // namespace halflife::ops
