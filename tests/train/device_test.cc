#include "train/device.h"

#include <gtest/gtest.h>

namespace halflife::train {
namespace {

TEST(DenseBf16Flops, CardsOfLessPowerAreToldFromModules) {
  EXPECT_EQ(DenseBf16FlopsOf("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(DenseBf16FlopsOf("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(DenseBf16FlopsOf("NVIDIA H100 NVL"), 835e12);
  EXPECT_EQ(DenseBf16FlopsOf("NVIDIA H200"), 989e12);
  EXPECT_EQ(DenseBf16FlopsOf("NVIDIA H200 NVL"), 835e12);
  EXPECT_EQ(DenseBf16FlopsOf("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(DenseBf16FlopsOf("NVIDIA GeForce RTX 4090"), std::nullopt);
}

}  // namespace
}  // namespace halflife::train
