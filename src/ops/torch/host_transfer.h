// The doors between the host's memory and a tensor's device for all that runs within a training
// step. A copy from pageable memory makes the host wait until the GPU has come that far, and so
// does every value that it reads; through Upload nothing waits, and ReadBack is where a step waits.
// On the CPU both give the tensor itself. host_waits.h counts them.
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

// A tensor on the CPU -> the same on `device`: by way of pinned memory, in the order of the current
// stream, without waiting. `host` may be freed or written to as soon as this returns, but on the
// CPU the result is `host`.
at::Tensor Upload(const at::Tensor& host, at::Device device);

// On the CPU: the host waits for the device. The result may share x's memory.
at::Tensor ReadBack(const at::Tensor& x);

// [num_bytes] uint8, on `device`, of memory that may go afterwards.
at::Tensor UploadBytes(const void* host, int64_t num_bytes, at::Device device);
// The bytes of a table that kernels read through a pointer.
template <typename Table>
at::Tensor UploadTable(const Table& table, at::Device device) {
  using Entry = std::remove_cvref_t<decltype(*table.data())>;
  static_assert(std::is_trivially_copyable_v<Entry>);
  return UploadBytes(table.data(), static_cast<int64_t>(table.size() * sizeof(Entry)), device);
}
// [values.size()] fp64 or int64, on `device`.
at::Tensor UploadValues(std::span<const double> values, at::Device device);
at::Tensor UploadValues(std::span<const int64_t> values, at::Device device);
// [values.size()], of constants of a model: uploaded when they are first asked for and kept while
// the process runs, so that what is recorded to be replayed finds them there (device_graph.h). Not
// to be written to.
at::Tensor ConstantsOn(at::Device device, std::span<const double> values,
                       at::ScalarType dtype = at::kDouble);
// Likewise the bytes of a table that follows from shapes alone.
at::Tensor ConstantBytesOn(at::Device device, std::string_view bytes);
// Likewise bytes that take long to make: `name` tells all that they follow from, and make() runs
// where none are kept under it.
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
