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
    if (!x.defined()) continue;  // whether it may be is the entry's own matter
    const at::ScalarType dtype = x.scalar_type();
    HL_CHECK_AS(ExitCode::kUsage,
                dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble, kernel,
                " of ", DTypeName(dtype), "; fp32, bf16 or fp64 would work");
  }
}

bool FitsBeside(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef shape) {
  return y.defined() && y.sizes() == shape && y.device() == x.device();
}

bool IsLike(const at::Tensor& x, const at::Tensor& y) {
  return FitsBeside(x, y, x.sizes()) && y.scalar_type() == x.scalar_type();
}

}  // namespace halflife::ops
