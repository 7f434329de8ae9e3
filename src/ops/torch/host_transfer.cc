#include "ops/torch/host_transfer.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/torch/host_waits.h"

namespace halflife::ops {
namespace {

// Returns a copy of `values`.
template <typename T>
at::Tensor Owned(std::span<const T> values, at::ScalarType dtype) {
  const at::Tensor copy = at::empty({static_cast<int64_t>(values.size())}, dtype);
  if (!values.empty()) std::memcpy(copy.mutable_data_ptr(), values.data(), values.size_bytes());
  return copy;
}

// Compares stored values with a span, so that a lookup does not copy the values.
struct Lexicographical {
  using is_transparent = void;
  bool operator()(std::span<const double> a, std::span<const double> b) const {
    return std::ranges::lexicographical_compare(a, b);
  }
};

}  // namespace

at::Tensor Upload(const at::Tensor& host, at::Device device) {
  RECORD_USER_SCOPE(kUploadScope);
  if (device.is_cpu()) return host;
  if (!device.is_cuda()) return host.to(device);
  // LibTorch does not reuse the pinned memory until the copies that read it have finished.
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

namespace {

// "cuda" without an index means the current device, which may be another one at the next call.
at::Device WithIndex(at::Device device) {
  if (!device.is_cuda() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

at::Tensor ConstantsOn(at::Device given, std::span<const double> values, at::ScalarType dtype) {
  const at::Device device = WithIndex(given);
  using Place = std::tuple<at::DeviceType, c10::DeviceIndex, at::ScalarType>;
  using ByValues = std::map<std::vector<double>, at::Tensor, Lexicographical>;
  static std::mutex mutex;
  // Never freed: at process exit the allocator may already be destroyed.
  static auto& kept = *new std::map<Place, ByValues>();
  const std::lock_guard lock(mutex);
  ByValues& there = kept[{device.type(), device.index(), dtype}];
  if (const auto found = there.find(values); found != there.end()) return found->second;
  const c10::InferenceMode for_training_too(false);
  const at::Tensor constants = Upload(Owned(values, at::kDouble).to(dtype), device);
  there.emplace(std::vector<double>(values.begin(), values.end()), constants);
  return constants;
}

namespace {

// Uploaded tables, by device and key.
class KeptTables {
 public:
  // `make` returns the bytes.
  template <typename Make>
  at::Tensor Get(at::Device given, std::string_view key, const Make& make) {
    const at::Device device = WithIndex(given);
    const std::lock_guard lock(mutex_);
    auto& there = tables_[{device.type(), device.index()}];
    if (const auto found = there.find(key); found != there.end()) return found->second;
    const c10::InferenceMode for_training_too(false);
    const auto& bytes = make();
    const at::Tensor table = UploadBytes(bytes.data(), static_cast<int64_t>(bytes.size()), device);
    there.emplace(key, table);
    return table;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<at::DeviceType, c10::DeviceIndex>,
           std::map<std::string, at::Tensor, std::less<>>>
      tables_;
};

}  // namespace

at::Tensor ConstantBytesOn(at::Device device, std::string_view bytes) {
  static auto& kept = *new KeptTables();  // never freed, see ConstantsOn()
  return kept.Get(device, bytes, [&] { return bytes; });
}

at::Tensor NamedConstantOn(at::Device device, std::string_view name,
                           const std::function<std::string()>& make) {
  static auto& kept = *new KeptTables();  // never freed, see ConstantsOn()
  return kept.Get(device, name, make);
}

}  // namespace halflife::ops
