// Which of two forms of a kernel runs: the fused loop (fp32 on the CPU) or the same formula in LibTorch calls (other
// devices and dtypes).
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace halflife::kernels {

inline bool IsCpuFloat(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }
inline bool AllCpuFloat(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& x : tensors)
    if (!IsCpuFloat(x)) return false;
  return true;
}

// Arithmetic happens in fp32 whatever the storage, and in fp64 for fp64 tensors (gradient checks).
inline at::ScalarType ComputeType(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace halflife::kernels
