#include "kernels/torch/host_transfer.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/torch/host_waits.h"

namespace halflife::kernels {
namespace {

// A copy of values that may go.
template <typename T>
at::Tensor Owned(std::span<const T> values, at::ScalarType dtype) {
  const at::Tensor copy = at::empty({static_cast<int64_t>(values.size())}, dtype);
  if (!values.empty()) std::memcpy(copy.mutable_data_ptr(), values.data(), values.size_bytes());
  return copy;
}

}  // namespace

at::Tensor Upload(const at::Tensor& host, at::Device device) {
  RECORD_USER_SCOPE(kUploadScope);
  if (device.is_cpu()) return host;
  if (!device.is_cuda()) return host.to(device);
  // LibTorch keeps pinned memory from being used again before the copies that read it have ended.
  const at::Tensor pinned = at::empty(host.sizes(), host.options().pinned_memory(true));
  pinned.copy_(host);
  return pinned.to(at::TensorOptions(device), /*non_blocking=*/true);
}

at::Tensor ReadBack(const at::Tensor& x) {
  RECORD_USER_SCOPE(kReadBackScope);
  return x.to(at::kCPU);
}

at::Tensor UploadBytes(const void* host, int64_t num_bytes, at::Device device) {
  return Upload(Owned<uint8_t>({static_cast<const uint8_t*>(host), static_cast<size_t>(num_bytes)},
                               at::kByte),
                device);
}
at::Tensor UploadValues(std::span<const double> values, at::Device device) {
  return Upload(Owned(values, at::kDouble), device);
}
at::Tensor UploadValues(std::span<const int64_t> values, at::Device device) {
  return Upload(Owned(values, at::kLong), device);
}

at::Tensor ConstantsOn(at::Device device, std::span<const double> values, at::ScalarType dtype) {
  using Key = std::tuple<std::string, at::ScalarType, std::vector<double>>;
  static std::mutex mutex;
  // Never freed: at the end of the process what memory came from may be gone before.
  static auto& kept = *new std::map<Key, at::Tensor>();
  const std::lock_guard lock(mutex);
  at::Tensor& constants = kept[{device.str(), dtype, {values.begin(), values.end()}}];
  if (!constants.defined()) {
    const c10::InferenceMode for_training_too(false);
    constants = Upload(Owned(values, at::kDouble).to(dtype), device);
  }
  return constants;
}

}  // namespace halflife::kernels
