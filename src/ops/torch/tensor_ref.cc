#include "ops/torch/tensor_ref.h"

#include "core/error.h"

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

}  // namespace halflife::ops
