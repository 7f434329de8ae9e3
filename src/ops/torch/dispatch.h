// Selects the implementation of an operation: the fused kernel for the tensor's device (fp32 or
// bf16 storage), or the same formula in LibTorch calls (fp64 and other devices).
//
//   if (!IsFused(x)) return Composed(x);
//   WithStorage(x, [&]<typename T>() {
//     const Args<T> args = {.x = Elements<T>(x), ...};
//     RunOn(x, [&] { cpu::Kernel(args); }, [&](auto stream) { cuda::Kernel(args, stream); });
//   });
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/common/cpu/math.h"
#include "ops/torch/host_waits.h"
#ifdef HALFLIFE_WITH_CUDA
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace halflife::ops {

// Returns true for the storage types of the fused kernels, which compute in fp32.
inline bool HasFusedDtype(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
}

#ifdef HALFLIFE_WITH_CUDA
constexpr bool kHasCudaKernels = true;
#else
constexpr bool kHasCudaKernels = false;
#endif

// Like HasFusedDtype(), for families that also have CUDA kernels.
inline bool IsFused(const at::Tensor& x) {
  return (x.is_cpu() || (kHasCudaKernels && x.is_cuda())) && HasFusedDtype(x);
}

// Returns true if RunOn() calls the CUDA kernel. In emulated tests these kernels run on the host,
// on tensors of the CPU.
inline bool RunsOnCuda(const at::Tensor& x) {
#ifdef HL_EMULATE
  return HasFusedDtype(x);
#else
  return x.is_cuda();
#endif
}

// Calls on_cpu(), or on_cuda(stream) with the current stream of x's device. on_cuda takes its
// stream as `auto`, so a build without CUDA never instantiates it.
template <typename OnCpu, typename OnCuda>
void RunOn([[maybe_unused]] const at::Tensor& x, const OnCpu& on_cpu,
           [[maybe_unused]] const OnCuda& on_cuda) {
  NoteKernel();
#ifdef HL_EMULATE
  if (RunsOnCuda(x)) {
    on_cuda(nullptr);
    return;
  }
#elif defined(HALFLIFE_WITH_CUDA)
  if (x.is_cuda()) {
    const c10::DeviceGuard guard(x.device());
    on_cuda(c10::cuda::getCurrentCUDAStream(x.get_device()).stream());
    return;
  }
#endif
  on_cpu();
}

// A loop over `count` rows, tokens or elements on several threads, `per_task` of them at a time.
struct RowTasks {
  int64_t count, per_task;
};
// RunOn() for kernels of rows, which on the CPU process rows [begin, end).
template <typename OnCpu, typename OnCuda>
void RunRows(const at::Tensor& x, const RowTasks& tasks, const OnCpu& on_cpu,
             const OnCuda& on_cuda) {
  RunOn(
      x, [&] { at::parallel_for(0, tasks.count, tasks.per_task, on_cpu); }, on_cuda);
}

// Sums over rows on the CPU, [num_blocks, columns]: one for each `per_task` rows, so that they do
// not depend on the number of threads. add(begin, end, sum) adds those of rows [begin, end).
struct PartialSums {
  int64_t num_blocks = 0;
  std::vector<float> values = {};
};
template <typename Add>
PartialSums SumBlocks(const RowTasks& tasks, int64_t columns, const Add& add) {
  PartialSums sums = {.num_blocks = (tasks.count + tasks.per_task - 1) / tasks.per_task};
  sums.values.resize(sums.num_blocks * columns);
  at::parallel_for(0, sums.num_blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * tasks.per_task;
      add(begin, std::min(tasks.count, begin + tasks.per_task),
          sums.values.data() + block * columns);
    }
  });
  return sums;
}

// Calls function.operator()<T>() with the storage type of x, fp32 or bf16.
template <typename Function>
auto WithStorage(const at::Tensor& x, const Function& function) {
  if (x.scalar_type() == at::kBFloat16) return function.template operator()<Bf16>();
  return function.template operator()<float>();
}

// Calls function.operator()<T, C>() with x's storage type T and arithmetic type C. Also accepts
// fp64, for families whose CPU kernels support it.
template <typename Function>
auto WithStorageAndArithmetic(const at::Tensor& x, const Function& function) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return function.template operator()<double, double>();
    case at::kBFloat16:
      return function.template operator()<Bf16, float>();
    default:
      return function.template operator()<float, float>();
  }
}

// Returns the elements of a contiguous tensor whose dtype is T's, or null if x is undefined.
template <typename T>
const T* Elements(const at::Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.const_data_ptr()) : nullptr;
}
template <typename T>
T* MutableElements(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

// Returns the arithmetic type: fp64 for fp64 tensors (used by gradient checks), fp32 for all other
// storage types.
inline at::ScalarType ComputeType(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace halflife::ops
