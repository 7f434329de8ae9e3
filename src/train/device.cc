#include "train/device.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "core/host.h"

#ifdef HALFLIFE_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#endif

namespace halflife::train {

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
  const char* why = "no GPU is visible; see nvidia-smi";
#else
  const char* why = "this build has no CUDA parts; build the cuda preset";
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
  // Gradients of embeddings and of attention would be added as they come.
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  // What nobody reads need not be filled.
  context.setDeterministicFillUninitializedMemory(false);
  // Parts of a product whose sum is rounded to bf16 are added up in fp32.
  context.setAllowBF16ReductionCuBLAS(false);
  // A switch that adds up by itself does so in any order. The user's own word counts more.
  setenv("NCCL_ALGO", "^NVLS", /*overwrite=*/0);
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
    if (const auto flops = DenseBf16FlopsOf(name)) return ComputePeak{*flops, name + " bf16 dense"};
    return std::nullopt;
  }
#endif
  return std::nullopt;
}

std::optional<double> DenseBf16FlopsOf(std::string_view gpu_name) {
  struct Known {
    std::string_view part;
    double flops;
  };
  // Cards with less power than the modules of the same name come first.
  constexpr Known kKnown[] = {{"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H200 NVL", 835e12},
                              {"H100", 989e12},      {"H200", 989e12},     {"A100", 312e12}};
  for (const Known& known : kKnown)
    if (gpu_name.find(known.part) != std::string_view::npos) return known.flops;
  return std::nullopt;
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
  kernels::DeviceLimits limits = {
      .is_cuda = true, .num_sms = 132, .shared_memory_bytes = 227 << 10};
#ifdef HALFLIFE_WITH_CUDA
  cudaDeviceProp properties{};
  if (device.is_cuda() && cudaGetDeviceProperties(&properties, device.index) == cudaSuccess) {
    limits.num_sms = properties.multiProcessorCount;
    limits.shared_memory_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  }
#endif
  return limits;
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
