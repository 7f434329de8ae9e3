#include "ops/torch/tensor_views.h"

#include <limits>

#include "core/error.h"
#include "ops/torch/tensor_checks.h"

#ifdef HALFLIFE_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace halflife::ops {

DType DTypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kLong:
      return DType::kI64;
    case at::kByte:
      return DType::kU8;
    default:
      HL_FAIL(ExitCode::kInternal, "no TensorRef type for ", c10::toString(tensor.scalar_type()));
  }
}

at::Tensor BytesOf(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

TensorRef RefOf(const at::Tensor& tensor) {
  HL_CHECK(tensor.is_contiguous(),
           "the tensor is not contiguous. Pass a contiguous tensor to RefOf().");
  const Device device =
      tensor.is_cuda() ? Device{Device::Kind::kCuda, tensor.device().index()} : Device{};
  // A meta tensor has no memory; its data pointer is only an offset.
  void* const data = tensor.is_meta() ? nullptr : tensor.data_ptr();
  return {data, tensor.numel(), DTypeOf(tensor), device};
}

cudaStream_t CurrentStream([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  if (device.is_cuda()) {
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device.index)).stream();
  }
#endif
  return nullptr;
}

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
