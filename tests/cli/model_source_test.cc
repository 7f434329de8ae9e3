// The type in which a command computes on a device.
#include "cli/model_source.h"

#include <gtest/gtest.h>

namespace halflife::cli {
namespace {

TEST(ComputeType, AutoIsBf16OnAGpu) {
  const Device cpu, gpu = {.kind = Device::Kind::kCuda};
  EXPECT_EQ(ComputeTypeOn(cpu, "auto"), at::kFloat);
  EXPECT_EQ(ComputeTypeOn(gpu, "auto"), at::kBFloat16);
  for (const Device& device : {cpu, gpu}) {
    EXPECT_EQ(ComputeTypeOn(device, "fp32"), at::kFloat);
    EXPECT_EQ(ComputeTypeOn(device, "bf16"), at::kBFloat16);
  }
}

// Commands that decode choose by the device, and measurements of a model do not.
TEST(ComputeType, DefaultsOfTheCommands) {
  EXPECT_EQ(GenerateOptions().compute.precision, "auto");
  EXPECT_EQ(ServeOptions().compute.precision, "auto");
  EXPECT_EQ(EvalOptions().compute.precision, "fp32");
  EXPECT_EQ(ScoreOptions().compute.precision, "fp32");
}

}  // namespace
}  // namespace halflife::cli
