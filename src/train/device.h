// The device that a run computes on, and its properties.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/tensor_ref.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::train {

// Returns the number of GPUs that this process sees. 0 in a build without CUDA.
int NumGpus();

// Parses "auto", "cpu" or "cuda". `asked_by` is the name of the setting, for errors. Throws Error
// kEnvironment if CUDA is requested but not compiled in or not available.
Device ChooseDevice(const std::string& name, int local_rank, const char* asked_by = "train.device");
// Must be called before any computation. Makes a GPU the current device of this thread, and selects
// forms of LibTorch operations and NCCL sums that always add in the same order. An operation
// without such a form warns. On a CPU, sums always have a fixed order.
void PrepareDevice(Device device);
// Makes the calling thread compute on a stream whose priority is above that of gradient sums
// (dist::GroupRole). No effect on a CPU. Only for programs that use the GPU from this thread: the
// stream is not ordered with the default stream of other threads.
void UseComputeStream(Device device);
at::Device ToTorch(Device device);

struct ComputePeak {
  double flops_per_s = 0;
  std::string source;  // How the peak is known, for example "H200 bf16 dense".
};
// Returns the peak of a known GPU, by its name. Returns nullopt for other GPUs and for a CPU: a
// matmul timed at every start would vary more between starts than the steps that it is compared
// with.
std::optional<ComputePeak> FindComputePeak(Device device);

// Facts about a GPU that is not necessarily present, from the vendor's data sheet unless marked as
// assumed.
struct GpuFacts {
  // A part of the name that CUDA reports, for example "H100 PCIe" of "NVIDIA H100 PCIe".
  std::string_view name;
  double bf16_flops_per_s = 0;  // Dense.

  // The remaining fields are known for devices of plans, which have a name in `device`. Otherwise
  // they are empty and 0.
  std::string_view device = {};
  double memory_bytes_per_s = 0;
  double memory_bytes = 0;                                 // Memory that a process can use.
  double nvlink_bytes_per_s = 0, network_bytes_per_s = 0;  // Per rank, as in Cluster. Assumed.
  double fp32_flops_per_s = 0;  // For products in fp32 (not tf32), as halflife computes them.
  kernels::DeviceLimits limits = {};
};
std::span<const GpuFacts> KnownGpus();
// Finds a GPU by the full name that CUDA reports. Returns null if it is not listed.
const GpuFacts* FindGpu(std::string_view cuda_name);
// Finds a GPU by its name in a plan. Returns null if it is not listed.
const GpuFacts* FindPlannedGpu(std::string_view device);

// The default of NCCL_ALGO. It excludes the algorithms in which NVLink switches add, because their
// order is arbitrary: NVLS sums within a node, and NVLSTree over nodes. NCCL compares whole names,
// so both are listed.
inline constexpr char kNcclAlgorithms[] = "^NVLS,NVLSTree";

// Returns the memory of the host (CPU), or of the GPU. 0: unknown.
uint64_t DeviceMemoryBytes(Device device);

// Returns the limits of the GPU that kernel schedules depend on. If `device` is the CPU, returns
// those of an H100, for plans without a GPU.
kernels::DeviceLimits GpuLimits(Device device);

// Returns 10 x major + minor of the GPU's compute capability (90 for an H100), or 0 for the CPU.
int ComputeCapability(Device device);

// Returns the highest resident (CPU) or allocated (CUDA) number of bytes of this process so far.
uint64_t PeakMemoryBytes(Device device);

}  // namespace halflife::train
