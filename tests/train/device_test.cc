// Checks the table of known GPUs.
#include "train/device.h"

#include <gtest/gtest.h>

namespace halflife::train {
namespace {

TEST(KnownGpus, SlowerCardsAreDistinguishedFromModules) {
  const auto flops = [](const char* name) { return FindGpu(name)->bf16_flops_per_s; };
  EXPECT_EQ(flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(flops("NVIDIA H100 NVL"), 835e12);
  EXPECT_EQ(flops("NVIDIA H200"), 989e12);
  EXPECT_EQ(flops("NVIDIA H200 NVL"), 835e12);
  EXPECT_EQ(flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(FindGpu("NVIDIA GeForce RTX 4090"), nullptr);
}

TEST(KnownGpus, APlanHasAllThatItAsksFor) {
  EXPECT_EQ(FindPlannedGpu("h100")->name, "H100");
  EXPECT_EQ(FindPlannedGpu(""), nullptr);
  EXPECT_EQ(FindPlannedGpu("cpu"), nullptr);
  for (const GpuFacts& gpu : KnownGpus()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_GT(gpu.bf16_flops_per_s, 0);
    if (gpu.device.empty()) continue;
    EXPECT_EQ(FindPlannedGpu(gpu.device), &gpu);
    EXPECT_GT(gpu.memory_bytes_per_s, 0);
    EXPECT_GT(gpu.memory_bytes, 0);
    EXPECT_GT(gpu.nvlink_bytes_per_s, gpu.network_bytes_per_s);
    EXPECT_GT(gpu.network_bytes_per_s, 0);
    EXPECT_TRUE(gpu.limits.is_cuda);
  }
}

// Without a GPU, plans for a GPU assume an H100.
TEST(KnownGpus, LimitsWithoutAGpuAreThoseOfAnH100) {
  const kernels::DeviceLimits here = GpuLimits({}), h100 = FindPlannedGpu("h100")->limits;
  EXPECT_EQ(here.num_sms, h100.num_sms);
  EXPECT_EQ(here.shared_memory_bytes, h100.shared_memory_bytes);
}

// NCCL compares whole names: without NVLSTree in the list, sums over nodes may add in switches.
TEST(Nccl, NoAlgorithmAddsInSwitches) { EXPECT_STREQ(kNcclAlgorithms, "^NVLS,NVLSTree"); }

}  // namespace
}  // namespace halflife::train
