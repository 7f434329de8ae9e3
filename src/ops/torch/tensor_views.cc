#include "ops/torch/tensor_views.h"

#include <limits>

#include "core/error.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_ref.h"

namespace halflife::ops {

DType ToDType(const char* kernel, const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  HL_CHECK_AS(ExitCode::kUsage, type == at::kFloat || type == at::kDouble || type == at::kBFloat16,
              kernel, " does not support ", DTypeName(type),
              ". Use fp32, bf16 or (on the CPU) fp64.");
  return DTypeOf(x);
}

kernels::TensorView ViewOf(const char* kernel, const at::Tensor& x) {
  const auto stride = [&](int64_t dim) { return dim < x.dim() ? x.stride(dim) : 0; };
  return {.data = x.data_ptr(),
          .stride_b = stride(0),
          .stride_t = stride(1),
          .stride_h = stride(2),
          .dtype = ToDType(kernel, x)};
}

kernels::TensorView TokenViewOf(const char* kernel, const at::Tensor& x) {
  return {.data = x.data_ptr(),
          .stride_b = x.stride(0),
          .stride_t = 0,
          .stride_h = x.stride(1),
          .dtype = ToDType(kernel, x)};
}

at::Tensor Rows(const at::Tensor& x) {
  return !x.defined() || x.stride(-1) == 1 ? x : x.contiguous();
}

at::Tensor Contiguous(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

int64_t NumRows(const at::Tensor& x) { return x.numel() / x.size(-1); }

const void* DataOrNull(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

void* MutableDataOrNull(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr() : nullptr;
}

void CheckCounts(const char* kernel, std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& x : tensors)
    for (const int64_t size : x.sizes())
      HL_CHECK_AS(ExitCode::kUsage, size <= std::numeric_limits<int>::max(), kernel,
                  " of a tensor ", x.sizes(), " exceeds 32-bit counts. Use dimensions up to ",
                  std::numeric_limits<int>::max(), ".");
}

[[noreturn]] void FailWithoutCuda(const char* kernel) {
  HL_FAIL(ExitCode::kEnvironment, kernel,
          " on a CUDA tensor: this build has no CUDA. Configure it with nvcc installed.");
}

}  // namespace halflife::ops
