// Checks that operations make on their tensors before a kernel reads through their pointers, and
// the description of tensors in error messages.
//
//   CheckDTypes("RmsNorm", {x, weight});
//   HL_CHECK(FitsWith(x, weight, {dim}), "RmsNorm got x ", Describe(x), " with weight ",
//       Describe(weight),
//            ". Use x [..., D] and weight [D] on one device.");
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>

namespace halflife::ops {

// Returns a name such as "fp16": that of core/dtype.h, or LibTorch's name for other types.
std::string DTypeName(at::ScalarType dtype);
// Returns "[2, 3] fp32 on cpu", or "undefined".
std::string Describe(const at::Tensor& x);

// Throws an error (exit 2) unless all defined tensors are fp32, bf16 or fp64.
void CheckDTypes(const char* kernel, std::initializer_list<at::Tensor> tensors);

// Returns true if y is defined, has this shape and is on x's device.
bool FitsWith(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef shape);
// Returns true if y is defined and has x's shape, dtype and device.
bool IsLike(const at::Tensor& x, const at::Tensor& y);

}  // namespace halflife::ops
