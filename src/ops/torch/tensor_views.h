// Converts tensors to the views, pointers and counts that kernels take. `kernel` is the name of the
// kernel family in error messages.
//
//   args.q = ViewOf("decay attention", Rows(q));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

#include "core/tensor_ref.h"
#include "kernels/common/tensor_view.h"

namespace halflife::ops {

// Throws an error (exit 2) for a dtype that no kernel supports.
DType ToDType(const char* kernel, const at::Tensor& x);
// Returns a view of [B, T, heads, width] or of its first dimensions.
kernels::TensorView ViewOf(const char* kernel, const at::Tensor& x);
// Returns a view of one token, [B, heads, width]; the second dimension is the head.
kernels::TensorView TokenViewOf(const char* kernel, const at::Tensor& x);
// Returns x with a contiguous last dimension.
at::Tensor Rows(const at::Tensor& x);
// Returns x.contiguous(), or x if it is undefined.
at::Tensor Contiguous(const at::Tensor& x);
// Returns the number of rows of x, which may have any number of dimensions. A row is the last
// dimension.
int64_t NumRows(const at::Tensor& x);
// The address of x's first element, or nullptr if x is undefined.
const void* DataOrNull(const at::Tensor& x);
void* MutableDataOrNull(const at::Tensor& x);
// Throws an error if a dimension needs more than 32 bits: kernels count rows, tokens, heads and
// channels in 32 bits and compute offsets in 64.
void CheckCounts(const char* kernel, std::initializer_list<at::Tensor> tensors);

[[noreturn]] void FailWithoutCuda(const char* kernel);

// Conversions to the types of `dist`, which does not depend on LibTorch.

// Throws Error kInternal for a dtype that neither `dist` nor the kernels support.
DType DTypeOf(const at::Tensor& tensor);
// Returns a borrowed view of a contiguous tensor's memory.
TensorRef RefOf(const at::Tensor& tensor);
// Returns the memory of a contiguous tensor as bytes [nbytes]. A tensor of one element is
// contiguous with any strides, but LibTorch's view as bytes requires a stride of 1.
at::Tensor BytesOf(const at::Tensor& tensor);
// Returns LibTorch's current stream on the device, or null on the CPU.
cudaStream_t CurrentStream(Device device);

}  // namespace halflife::ops
