// One tiny checkpoint per schema version that is kept, written by the program of that time, can
// always be loaded. To write a new one, run ckpt_tests --gtest_also_run_disabled_tests
// --gtest_filter='GoldenTest.*Write*'
#include <gtest/gtest.h>

#include "ckpt/ckpt_fixture.h"
#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "support/paths.h"

namespace halflife::ckpt::test {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;

constexpr uint64_t kStep = 7;

fs::path GoldenRun(uint32_t version) {
  return fs::path(halflife::test::kSourceDir) / "tests/golden" / Concat("ckpt_v", version);
}

// Returns a tied matrix that is split between two ranks, a vector of the fp32 region, and an empty
// tensor.
std::vector<dist::ParamSpec> GoldenSpecs() {
  return {{.name = "embeddings.weight",
           .shape = {11, 8},
           .weight_decay = true,
           .aliases = {"lm_head.weight"}},
          {.name = "norm.weight", .shape = {8}, .region = dist::Region::kFp32},
          {.name = "empty", .shape = {0}}};
}

TEST(GoldenTest, EverySchemaVersionLoads) {
  for (uint32_t version = kOldestSchemaVersion; version <= kSchemaVersion; ++version) {
    SCOPED_TRACE(version);
    const TempDir run;  // A load cleans up the folder, so it gets a copy.
    fs::copy(GoldenRun(version), run.path(), fs::copy_options::recursive);
    for (const int world : {1, 3}) {
      const auto report = LoadStep(run.path(), world, GoldenSpecs());
      ASSERT_TRUE(report);
      EXPECT_EQ(report->state.step, kStep);
      EXPECT_EQ(report->state.mesh.world, 2);
      EXPECT_EQ(report->state.data.tokens, MakeState(kStep).data.tokens);
      EXPECT_EQ(report->state.trajectory, MakeState(kStep).trajectory);
    }
    EXPECT_TRUE(StepReader::Open(FindStep(run.path())).Verify(1).empty());
  }
}

TEST(GoldenTest, DISABLED_Write) {
  SaveStep(GoldenRun(kSchemaVersion), {.world = 2, .step = kStep}, GoldenSpecs());
}

}  // namespace
}  // namespace halflife::ckpt::test
