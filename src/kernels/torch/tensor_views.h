// Tensors of heads as the kernels read them. `kernel` is what messages call the family.
//
//   args.q = ViewOf("decay attention", Rows(q));
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "kernels/tensor_view.h"

namespace halflife::kernels {

// Error (exit 2) for a dtype that no kernel takes.
DType ToDType(const char* kernel, const at::Tensor& x);
// Of [B, T, heads, width], or of its first dimensions.
TensorView ViewOf(const char* kernel, const at::Tensor& x);
// Of one token, [B, heads, width]: the head is the second dimension.
TensorView TokenViewOf(const char* kernel, const at::Tensor& x);
// The last dimension contiguous.
at::Tensor Rows(const at::Tensor& x);
// The kernels count rows, tokens, heads and channels in 32 bits (and form offsets in 64).
void CheckCounts(const char* kernel, std::initializer_list<at::Tensor> tensors);

[[noreturn]] void FailWithoutCuda(const char* kernel);

}  // namespace halflife::kernels
