// What the entries of the families demand of their tensors before a kernel reads through their
// pointers, and what their messages say of those tensors.
//
//   CheckDTypes("RmsNorm", {x, weight});
//   HL_CHECK(FitsBeside(x, weight, {dim}), "RmsNorm of x ", Describe(x), " with weight ",
//       Describe(weight),
//            "; x [..., D] and weight [D] on one device would work");
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>

namespace halflife::ops {

// "fp16": the names of core/dtype.h, and LibTorch's own for what the project has no name for.
std::string DTypeName(at::ScalarType dtype);
// "[2, 3] fp32 on cpu", or "undefined".
std::string Describe(const at::Tensor& x);

// Error (exit 2) unless all are fp32, bf16 or fp64.
void CheckDTypes(const char* kernel, std::initializer_list<at::Tensor> tensors);

// Whether y is there, has this shape, and lies on x's device.
bool FitsBeside(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef shape);
// Whether y is there, of x's shape and dtype, and on its device.
bool IsLike(const at::Tensor& x, const at::Tensor& y);

}  // namespace halflife::ops
