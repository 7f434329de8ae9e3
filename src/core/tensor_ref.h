// A borrowed, contiguous block of memory with an element type. `dist` and `ckpt` use it instead of
// LibTorch tensors. The caller keeps the memory alive and in place until the operation that
// received the reference is done.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;  // null on the CPU

namespace halflife {

struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  bool is_cuda() const { return kind == Kind::kCuda; }
  bool operator==(const Device&) const = default;
};

struct TensorRef {
  void* data = nullptr;
  int64_t count = 0;  // elements
  DType dtype = DType::kF32;
  Device device = {};

  size_t bytes() const { return static_cast<size_t>(count) * SizeOf(dtype); }
  // Returns a slice. A slice of a reference without memory, as a plan uses it, has no memory
  // either.
  TensorRef Slice(int64_t begin, int64_t length) const {
    char* const first = static_cast<char*>(data);
    return {first == nullptr ? nullptr : first + begin * static_cast<int64_t>(SizeOf(dtype)),
            length, dtype, device};
  }
};

inline TensorRef Ref(float* data, int64_t count) { return {data, count, DType::kF32, {}}; }
inline TensorRef Ref(double* data, int64_t count) { return {data, count, DType::kF64, {}}; }
inline TensorRef Ref(int32_t* data, int64_t count) { return {data, count, DType::kI32, {}}; }
inline TensorRef Ref(int64_t* data, int64_t count) { return {data, count, DType::kI64, {}}; }
inline TensorRef Ref(uint8_t* data, int64_t count) { return {data, count, DType::kU8, {}}; }

}  // namespace halflife
