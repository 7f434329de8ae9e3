// The GPUs, and whether this build can use them.
#ifdef HALFLIFE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <cctype>

#include "cli/doctor/checks.h"
#include "cli/doctor/system_files.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/human.h"

namespace halflife::cli::doctor {
namespace {

namespace fs = std::filesystem;

#ifdef HALFLIFE_WITH_CUDA

// Returns ", NUMA node 1", or nothing if the system does not say. A rank should use cores of the
// node that its GPU is attached to.
std::string NumaNode(const CheckInputs& inputs, int index) {
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) != cudaSuccess) return "";
  std::string id(bus_id);
  std::ranges::transform(id, id.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string node = inputs.Read(inputs.sys / "bus/pci/devices" / id / "numa_node");
  return node.empty() || node[0] == '-' ? "" : ", NUMA node " + node.substr(0, node.find('\n'));
}

Finding Describe(const CheckInputs& inputs, int index) {
  const std::string name = Concat("GPU ", index);
  cudaDeviceProp properties{};
  const cudaError_t result = cudaGetDeviceProperties(&properties, index);
  if (result != cudaSuccess) {
    return {Verdict::kFail, name, cudaGetErrorString(result), "run nvidia-smi for details"};
  }
  Finding finding{
      Verdict::kOk,
      name,
      Concat(properties.name, ", ", HumanBytes(properties.totalGlobalMem), ", compute capability ",
             properties.major, ".", properties.minor, NumaNode(inputs, index)),
      "",
      {{"memory_bytes", static_cast<double>(properties.totalGlobalMem)}}};
  if (const auto problem =
          FindGpuProblem(HALFLIFE_CUDA_ARCHITECTURES, properties.major, properties.minor)) {
    finding.verdict = Verdict::kFail;
    finding.text += "; " + problem->text;
    finding.remedy = problem->remedy;
  }
  return finding;
}

// Reports which pairs access each other's memory directly (NVLink or PCIe). Other pairs use the
// host.
Finding PeerAccess(int count) {
  std::string without;
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      int can = 0;
      if (from != to) cudaDeviceCanAccessPeer(&can, from, to);
      if (from != to && can == 0) without += Concat(without.empty() ? "" : ", ", from, "-", to);
    }
  }
  if (without.empty()) return {Verdict::kOk, "peer access", Concat("between all ", count, " GPUs")};
  return {
      Verdict::kWarn, "peer access",
      Concat("none for the pairs ", without, ", so their transfers are slow"),
      "nvidia-smi topo -m shows the links; in a virtual machine, ask for NVLink or for IOMMU off"};
}

std::vector<Finding> AskCuda(const CheckInputs& inputs, bool has_driver) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaErrorNoDevice || (result != cudaSuccess && !has_driver)) count = 0;
  if (result != cudaSuccess && result != cudaErrorNoDevice && has_driver) {
    return {{Verdict::kFail, "GPU", Concat("CUDA cannot list GPUs: ", cudaGetErrorString(result)),
             "run nvidia-smi for details; update the driver if it is too old"}};
  }
  if (count == 0) return {{Verdict::kOk, "GPU", "none: training runs on the CPU"}};
  std::vector<Finding> findings;
  for (int index = 0; index < count; ++index) findings.push_back(Describe(inputs, index));
  if (count > 1) findings.push_back(PeerAccess(count));
  return findings;
}

#else

// Returns the findings of the driver, without CUDA.
std::vector<Finding> AskDriver(const CheckInputs& inputs) {
  std::vector<Finding> findings;
  std::error_code ignored;
  for (const fs::directory_entry& gpu :
       fs::directory_iterator(inputs.proc / "driver/nvidia/gpus", ignored)) {
    findings.push_back(
        {Verdict::kWarn, "GPU",
         Concat(ParseField(inputs.Read(gpu.path() / "information"), "Model"), " at ",
                gpu.path().filename().string(), ", which this build without CUDA cannot use"),
         "launch/setup --cuda && cmake --preset cuda && cmake --build --preset cuda --target "
         "halflife"});
  }
  if (findings.empty()) findings.push_back({Verdict::kOk, "GPU", "none: training runs on the CPU"});
  return findings;
}

#endif

}  // namespace

std::vector<Finding> CheckGpus(const CheckInputs& inputs) {
  std::vector<Finding> findings;
  const std::string driver = inputs.Read(inputs.proc / "driver/nvidia/version");
  if (!driver.empty()) {
    findings.push_back({Verdict::kOk, "NVIDIA driver", ParseVersion(driver)});
  }
#ifdef HALFLIFE_WITH_CUDA
  const std::vector<Finding> gpus = AskCuda(inputs, !driver.empty());
#else
  const std::vector<Finding> gpus = AskDriver(inputs);
#endif
  findings.insert(findings.end(), gpus.begin(), gpus.end());
  return findings;
}

void RequireUsableGpu([[maybe_unused]] Device device) {
#ifdef HALFLIFE_WITH_CUDA
  cudaDeviceProp properties{};
  if (!device.is_cuda() || cudaGetDeviceProperties(&properties, device.index) != cudaSuccess)
    return;
  const auto problem =
      FindGpuProblem(HALFLIFE_CUDA_ARCHITECTURES, properties.major, properties.minor);
  if (problem)
    HL_FAIL(ExitCode::kEnvironment, "cannot compute on GPU ", device.index, ", ", properties.name,
            " of compute capability ", properties.major, ".", properties.minor, ": ", problem->text,
            ". Fix: ", problem->remedy);
#endif
}

}  // namespace halflife::cli::doctor
