// Tensors as the kernels read them: views, pointers and counts. `kernel` is the name of the kernel
// family in error messages.
//
//   args.q = ViewOf("decay attention", Rows(q));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

#include "kernels/common/tensor_view.h"

namespace halflife::ops {

// Error (exit 2) for a dtype that no kernel takes.
DType ToDType(const char* kernel, const at::Tensor& x);
// Of [B, T, heads, width], or of its first dimensions.
kernels::TensorView ViewOf(const char* kernel, const at::Tensor& x);
// Of one token, [B, heads, width]: the head is the second dimension.
kernels::TensorView TokenViewOf(const char* kernel, const at::Tensor& x);
// Returns x with a contiguous last dimension.
at::Tensor Rows(const at::Tensor& x);
// Returns x.contiguous(), or x if it is undefined.
at::Tensor Contiguous(const at::Tensor& x);
// The number of rows of x, which has any number of dimensions; a row is its last dimension.
int64_t NumRows(const at::Tensor& x);
// The address of x's first element, or nullptr if x is undefined.
const void* DataOrNull(const at::Tensor& x);
void* MutableDataOrNull(const at::Tensor& x);
// The kernels count rows, tokens, heads and channels in 32 bits (and form offsets in 64).
void CheckCounts(const char* kernel, std::initializer_list<at::Tensor> tensors);

[[noreturn]] void FailWithoutCuda(const char* kernel);

}  // namespace halflife::ops
