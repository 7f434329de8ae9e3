// What the rest of the trainer needs to know about the device it computes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/tensor_ref.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::train {

// That this process sees; 0 in a build without CUDA parts.
int NumGpus();

// "auto" | "cpu" | "cuda", as the setting says that `asked_by` names. Error kEnvironment where CUDA
// is asked for and is not compiled in or not there.
Device ChooseDevice(const std::string& name, int local_rank, const char* asked_by = "train.device");
// Before anything is computed. A GPU is then the one that this thread's launches go to, and
// LibTorch's operations and NCCL's sums there take the forms that always add in the same order; an
// operation that has none warns. On a CPU that is so anyway.
void PrepareDevice(Device device);
at::Device ToTorch(Device device);

struct ComputePeak {
  double flops_per_s = 0;
  std::string source;  // how it is known, e.g. "H200 bf16 dense"
};
// A GPU's is known by its name; nullopt for other GPUs and for a CPU: a matmul that is timed at
// every start differs more from start to start than the steps that it would be compared with.
std::optional<ComputePeak> FindComputePeak(Device device);

// What is known of a GPU before one is here: the vendor's data sheet, but for what is said to be
// assumed.
struct GpuFacts {
  std::string_view name;  // a part of the one that CUDA gives it, "H100 PCIe" of "NVIDIA H100 PCIe"
  double bf16_flops_per_s = 0;  // dense

  // The rest is known of what a plan can be for, as its `device`; else it is empty and 0.
  std::string_view device = {};
  double memory_bytes_per_s = 0;
  double memory_bytes = 0;                                 // that a process finds
  double nvlink_bytes_per_s = 0, network_bytes_per_s = 0;  // of a rank, as Cluster's; assumed
  double fp32_flops_per_s = 0;  // of products that stay in fp32, as ours do: not tf32
  kernels::DeviceLimits limits = {};
};
std::span<const GpuFacts> KnownGpus();
// By the whole name that CUDA gives it; null for one not listed.
const GpuFacts* FindGpu(std::string_view cuda_name);
// By the name that a plan gives it; null likewise.
const GpuFacts* FindPlannedGpu(std::string_view device);

// The memory of the host (CPU), or of the GPU. 0: not known.
uint64_t DeviceMemoryBytes(Device device);

// Returns the GPU's limits, as far as schedules of kernels depend on them; an H100's where `device`
// is the CPU, as a plan for a GPU is made where none is.
kernels::DeviceLimits GpuLimits(Device device);

// Highest resident (CPU) or allocated (CUDA) bytes of this process so far.
uint64_t PeakMemoryBytes(Device device);

}  // namespace halflife::train
