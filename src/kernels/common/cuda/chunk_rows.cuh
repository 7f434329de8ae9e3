// Loads and stores single elements of a chunk's rows in the caller's tensors (fp32, bf16).
#pragma once

#include <type_traits>

#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/cuda/device.h"
#include "kernels/common/tensor_view.h"

namespace halflife::kernels {

template <typename T>
HL_DEVICE float Load(const TensorView& view, const ChunkEntry& chunk, int token, int head,
                     int column) {
  return ToFloat(static_cast<const T*>(
      view.data)[chunk.row * view.stride_b + (chunk.token + token) * view.stride_t +
                 head * view.stride_h + column]);
}
template <typename T>
HL_DEVICE void Store(const TensorView& view, const ChunkEntry& chunk, int token, int head,
                     int column, float x) {
  T* const target = static_cast<T*>(view.data) + chunk.row * view.stride_b +
                    (chunk.token + token) * view.stride_t + head * view.stride_h + column;
  if constexpr (std::is_same_v<T, bf16>) {
    *target = ToBf16(x);
  } else {
    *target = x;
  }
}

}  // namespace halflife::kernels
