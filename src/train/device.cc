#include "train/device.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "core/host.h"
#include "dist/communicator.h"
#include "ops/decay_attention/decay_attention.h"

#ifdef HALFLIFE_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace halflife::train {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr kernels::DeviceLimits kHopper = {
    .is_cuda = true, .num_sms = 132, .shared_memory_bytes = 227 << 10, .warpgroups = true};
constexpr kernels::DeviceLimits kAmpere = {
    .is_cuda = true, .num_sms = 108, .shared_memory_bytes = 163 << 10};

// Cards with less power come before the modules of the same name.
constexpr GpuFacts kGpus[] = {{.name = "H100 PCIe", .bf16_flops_per_s = 756e12},
                              {.name = "H100 NVL", .bf16_flops_per_s = 835e12},
                              {.name = "H200 NVL", .bf16_flops_per_s = 835e12},
                              {.name = "H100",
                               .bf16_flops_per_s = 989e12,
                               .device = "h100",
                               .memory_bytes_per_s = 3.35e12,
                               .memory_bytes = 79 * kGiB,
                               .nvlink_bytes_per_s = 360e9,
                               .network_bytes_per_s = 45e9,
                               .fp32_flops_per_s = 67e12,
                               .limits = kHopper},
                              {.name = "H200",
                               .bf16_flops_per_s = 989e12,
                               .device = "h200",
                               .memory_bytes_per_s = 4.8e12,
                               .memory_bytes = 139 * kGiB,
                               .nvlink_bytes_per_s = 360e9,
                               .network_bytes_per_s = 45e9,
                               .fp32_flops_per_s = 67e12,
                               .limits = kHopper},
                              {.name = "A100",
                               .bf16_flops_per_s = 312e12,
                               .device = "a100",
                               .memory_bytes_per_s = 2.039e12,
                               .memory_bytes = 79 * kGiB,
                               .nvlink_bytes_per_s = 230e9,
                               .network_bytes_per_s = 22.5e9,
                               .fp32_flops_per_s = 19.5e12,
                               .limits = kAmpere}};

}  // namespace

int NumGpus() {
#ifdef HALFLIFE_WITH_CUDA
  return c10::cuda::device_count();
#else
  return 0;
#endif
}
Device ChooseDevice(const std::string& name, int local_rank, const char* asked_by) {
  const int num_devices = name == "cpu" ? 0 : NumGpus();
  if (num_devices > 0) return {Device::Kind::kCuda, local_rank % num_devices};
#ifdef HALFLIFE_WITH_CUDA
  const char* why = "no GPU is visible. Check nvidia-smi";
#else
  const char* why = "this build has no CUDA parts. Build the cuda preset";
#endif
  HL_CHECK_AS(ExitCode::kEnvironment, name != "cuda", asked_by, " is 'cuda', but ", why,
              ", or use ", asked_by, " 'cpu'");
  return {};
}

void PrepareDevice([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  if (!device.is_cuda()) return;
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device.index));
  at::Context& context = at::globalContext();
  // Otherwise, gradients of embeddings and attention would be added in arbitrary order. cuBLAS is
  // deterministic on one stream, but LibTorch accepts that only with this workspace setting.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  // Uninitialised memory that no operation reads need not be filled.
  context.setDeterministicFillUninitializedMemory(false);
  // Partial sums of a product are added in fp32 before the result is rounded to bf16.
  context.setAllowBF16ReductionCuBLAS(false);
  // A value that the user sets takes precedence.
  setenv("NCCL_ALGO", kNcclAlgorithms, /*overwrite=*/0);
#endif
}

void UseComputeStream([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  if (!device.is_cuda()) return;
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(
      dist::kComputePriority, static_cast<c10::DeviceIndex>(device.index)));
#endif
}

at::Device ToTorch(Device device) {
  return device.is_cuda() ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device.index))
                          : at::Device(at::kCPU);
}

std::optional<ComputePeak> FindComputePeak([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device.index) != cudaSuccess) return std::nullopt;
    const std::string name = properties.name;
    if (const GpuFacts* const gpu = FindGpu(name))
      return ComputePeak{gpu->bf16_flops_per_s, name + " bf16 dense"};
    return std::nullopt;
  }
#endif
  return std::nullopt;
}

std::span<const GpuFacts> KnownGpus() { return kGpus; }

const GpuFacts* FindGpu(std::string_view cuda_name) {
  for (const GpuFacts& gpu : kGpus)
    if (cuda_name.find(gpu.name) != std::string_view::npos) return &gpu;
  return nullptr;
}

const GpuFacts* FindPlannedGpu(std::string_view device) {
  for (const GpuFacts& gpu : kGpus)
    if (!gpu.device.empty() && gpu.device == device) return &gpu;
  return nullptr;
}

uint64_t DeviceMemoryBytes([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, device.index) == cudaSuccess
               ? properties.totalGlobalMem
               : 0;
  }
#endif
  return HostMemoryBytes();
}

kernels::DeviceLimits GpuLimits([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  if (device.is_cuda()) return ops::LimitsOfGpu(device.index);
#endif
  return kHopper;
}

int ComputeCapability([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp properties{};
    HL_CHECK_AS(ExitCode::kEnvironment,
                cudaGetDeviceProperties(&properties, device.index) == cudaSuccess,
                "the properties of GPU ", device.index, " cannot be read. Check nvidia-smi.");
    return 10 * properties.major + properties.minor;
  }
#endif
  return 0;
}

uint64_t PeakMemoryBytes([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  if (device.is_cuda()) {
    using c10::CachingAllocator::StatType;
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(
        static_cast<c10::DeviceIndex>(device.index));
    return static_cast<uint64_t>(
        stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)].peak);
  }
#endif
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace halflife::train
