// What the rest of the trainer needs to know about the device it computes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "core/tensor_ref.h"

namespace halflife::train {

// "auto" | "cpu" | "cuda". Error kEnvironment where CUDA is asked for and is not compiled in or not
// there.
Device ChooseDevice(const std::string& name, int local_rank);
at::Device ToTorch(Device device);

// A borrowed view of a contiguous tensor's memory.
TensorRef RefOf(const at::Tensor& tensor);

// The stream that LibTorch works on; null on the CPU.
cudaStream_t CurrentStream(Device device);

struct ComputePeak {
  double flops_per_s = 0;
  std::string source;  // how it is known, e.g. "measured sgemm, 1 thread" or "H200 bf16 dense"
};
// CPU: measured with a 1024^3 fp32 matmul on the current thread count. CUDA: by device name;
// nullopt for unknown ones.
std::optional<ComputePeak> FindComputePeak(Device device);

// Highest resident (CPU) or allocated (CUDA) bytes of this process so far.
uint64_t PeakMemoryBytes(Device device);

}  // namespace halflife::train
