// Transfers between the host and a tensor's device within a training step. Copies from pageable
// memory, and reads of single values, make the host wait for the GPU. Upload() never waits;
// ReadBack() is the only place where a step waits. On the CPU both return the tensor itself.
// host_waits.h counts the calls.
//
//   const at::Tensor table = UploadTable(entries, x.device());  // a copy; entries may go
//   const at::Tensor sums = ReadBack(at::cat({losses, squares}));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace halflife::ops {

// Copies a CPU tensor to `device` through pinned memory, ordered by the current stream and without
// waiting. `host` may be freed or overwritten as soon as the call returns, except on the CPU, where
// the result is `host` itself.
at::Tensor Upload(const at::Tensor& host, at::Device device);

// Returns x on the CPU; the host waits for the device. The result may share x's memory.
at::Tensor ReadBack(const at::Tensor& x);

// Returns [num_bytes] uint8 on `device`. `host` may be freed when the call returns.
at::Tensor UploadBytes(const void* host, int64_t num_bytes, at::Device device);
// Uploads a table that kernels read through a pointer.
template <typename Table>
at::Tensor UploadTable(const Table& table, at::Device device) {
  using Entry = std::remove_cvref_t<decltype(*table.data())>;
  static_assert(std::is_trivially_copyable_v<Entry>);
  return UploadBytes(table.data(), static_cast<int64_t>(table.size() * sizeof(Entry)), device);
}
// Returns [values.size()] fp64 or int64 on `device`.
at::Tensor UploadValues(std::span<const double> values, at::Device device);
at::Tensor UploadValues(std::span<const int64_t> values, at::Device device);
// Returns [values.size()] model constants. They are uploaded at the first call and kept for the
// life of the process, so that recorded graphs find them at the same address (device_graph.h). Do
// not modify the result.
at::Tensor ConstantsOn(at::Device device, std::span<const double> values,
                       at::ScalarType dtype = at::kDouble);
// The same for the bytes of a table that depends only on shapes.
at::Tensor ConstantBytesOn(at::Device device, std::string_view bytes);
// The same for bytes that are expensive to compute. `name` must identify everything that the bytes
// depend on. make() runs only if there is no entry of that name.
at::Tensor NamedConstantOn(at::Device device, std::string_view name,
                           const std::function<std::string()>& make);
template <typename Table>
at::Tensor ConstantTable(const Table& table, at::Device device) {
  using Entry = std::remove_cvref_t<decltype(*table.data())>;
  static_assert(
      std::has_unique_object_representations_v<Entry>);  // no padding between tables' ends
  return ConstantBytesOn(
      device, {reinterpret_cast<const char*>(table.data()), table.size() * sizeof(Entry)});
}

}  // namespace halflife::ops
