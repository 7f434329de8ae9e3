// The element types of tensors. This header is C++17 and includes no other project header, because
// CUDA sources include it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halflife {

enum class DType : uint8_t { kF32, kF64, kBF16, kI32, kI64, kU8 };

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr const char* Name(DType dtype) {
  constexpr const char* kNames[] = {"fp32", "fp64", "bf16", "int32", "int64", "uint8"};
  return kNames[static_cast<int>(dtype)];
}

}  // namespace halflife
