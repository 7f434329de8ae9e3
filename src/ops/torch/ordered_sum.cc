#include "ops/torch/ordered_sum.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>

#include "core/error.h"

#ifdef HALFLIFE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace halflife::ops {
namespace {

at::Tensor TensorOf(const TensorRef& ref, at::IntArrayRef shape) {
  const at::Device device =
      ref.device.is_cuda() ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(ref.device.index))
                           : at::Device(at::kCPU);
  const at::ScalarType type = ref.dtype == DType::kF64 ? at::kDouble : at::kFloat;
  return at::from_blob(ref.data, shape, at::TensorOptions(type).device(device));
}

// Each level of the tree adds all of its pairs at once: part i and part i + distance, for every i
// that is a multiple of 2 distance.
void Sum(at::Tensor parts, at::Tensor out) {
  const int64_t count = parts.size(0);
  int64_t distance = 1;
  for (; 2 * distance < count; distance *= 2) {
    at::Tensor left = parts.slice(0, 0, count - distance, 2 * distance);
    left.add_(parts.slice(0, distance, count, 2 * distance));
  }
  at::add_out(out, parts[0], parts[distance]);
}

}  // namespace

void SumInOrder(TensorRef parts, int num_parts, TensorRef out,
                [[maybe_unused]] cudaStream_t stream) {
  HL_CHECK(num_parts >= 2 && parts.count == num_parts * out.count, parts.count,
           " elements are not ", num_parts, " parts of ", out.count);
  HL_CHECK(parts.dtype == out.dtype && (out.dtype == DType::kF32 || out.dtype == DType::kF64),
           "the parts of an ordered sum are fp32 or fp64, like their sum");
  const at::Tensor of_parts = TensorOf(parts, {num_parts, out.count}),
                   sum = TensorOf(out, {out.count});
#ifdef HALFLIFE_WITH_CUDA
  if (out.device.is_cuda()) {
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromExternal(stream, static_cast<c10::DeviceIndex>(out.device.index)));
    return Sum(of_parts, sum);
  }
#endif
  Sum(of_parts, sum);
}

}  // namespace halflife::ops
