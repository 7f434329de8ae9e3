// Which of two forms of a kernel runs: the fused loop (fp32 or bf16 on the CPU) or the same formula in LibTorch calls
// (other devices and dtypes).
//
//   if (IsCpuStorage(x)) return WithStorage(x, [&]<typename T>() { return Fused<T>(x); });
//   return Composed(x);
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "kernels/cpu_math.h"

namespace halflife::kernels {

inline bool IsCpuFloat(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

// Storage that the fused loops read and write; their arithmetic is fp32.
inline bool IsCpuStorage(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}
inline bool SameCpuStorage(const at::Tensor& x, const at::Tensor& y) {
  return IsCpuStorage(x) && y.is_cpu() && y.scalar_type() == x.scalar_type();
}

// function.operator()<T>() for the storage type of a tensor that IsCpuStorage.
template <typename Function>
auto WithStorage(const at::Tensor& x, const Function& function) {
  if (x.scalar_type() == at::kBFloat16) return function.template operator()<Bf16>();
  return function.template operator()<float>();
}

// Elements of a contiguous tensor whose dtype is T's; null for an undefined one.
template <typename T>
const T* Elements(const at::Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.const_data_ptr()) : nullptr;
}
template <typename T>
T* MutableElements(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

// Arithmetic happens in fp32 whatever the storage, and in fp64 for fp64 tensors (gradient checks).
inline at::ScalarType ComputeType(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace halflife::kernels
