#include "ops/torch/tensor_checks.h"

#include "core/concat.h"
#include "core/error.h"

namespace halflife::ops {

std::string DTypeName(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "fp32";
    case at::kDouble:
      return "fp64";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(dtype);
  }
}

std::string Describe(const at::Tensor& x) {
  if (!x.defined()) return "undefined";
  return Concat(x.sizes(), " ", DTypeName(x.scalar_type()), " on ", x.device().str());
}

void CheckDTypes(const char* kernel, std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& x : tensors) {
    if (!x.defined()) continue;  // callers decide which tensors may be undefined
    const at::ScalarType dtype = x.scalar_type();
    HL_CHECK_AS(ExitCode::kUsage,
                dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble, kernel,
                " does not support ", DTypeName(dtype), ". Use fp32, bf16 or fp64.");
  }
}

bool FitsWith(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef shape) {
  return y.defined() && y.sizes() == shape && y.device() == x.device();
}

bool IsLike(const at::Tensor& x, const at::Tensor& y) {
  return FitsWith(x, y, x.sizes()) && y.scalar_type() == x.scalar_type();
}

}  // namespace halflife::ops
