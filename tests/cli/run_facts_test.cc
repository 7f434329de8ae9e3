// The facts about a run that come from its config and checkpoint.
#include "cli/run_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace halflife::cli {
namespace {

using testing::HasSubstr;

report::RunRecord FactsOf(const std::string& config_text) {
  const test::TempDir folder;
  report::RunRecord run;
  run.path = folder.path();
  run.config_text = config_text;
  AddRunFacts(run);
  return run;
}

TEST(RunFacts, TheConfigGivesModelAndTokens) {
  const report::RunRecord run = FactsOf(R"(data { seq_len: 64 } optimizer { clip_norm: 0.5 }
      model { vocab_size: 259 model_dim: 32 num_layers: 2 channel_mixer { swiglu { width: 64 } }
              mixer { gla { num_heads: 2 } } }
      train { steps: 20 global_batch: 8 })");
  EXPECT_EQ(run.config_problem, "");
  EXPECT_EQ(run.model, "gla, 2 x 32");
  EXPECT_EQ(run.tokens_per_step, 512);
  EXPECT_EQ(run.total_steps, 20);
  EXPECT_EQ(run.clip_norm, 0.5);
  EXPECT_GT(run.num_parameters.value(), 2 * 259 * 32);
  EXPECT_EQ(run.config.at("optimizer.clip_norm"), "0.5");
}

TEST(RunFacts, AConfigOfAnotherVersionIsReported) {
  const report::RunRecord run = FactsOf("train { warp: 9 }");
  EXPECT_THAT(run.config_problem, HasSubstr("config.textproto:1:"));
  EXPECT_TRUE(run.config.empty());
}

TEST(RunFacts, WithoutConfigAndCheckpointNothingIsAdded) {
  const report::RunRecord run = FactsOf("");
  EXPECT_EQ(run.config_problem, "");  // ReadRun reports it.
  EXPECT_TRUE(run.config.empty());
  EXPECT_EQ(run.build, "");
  EXPECT_FALSE(run.num_parameters || run.world_size);
}

}  // namespace
}  // namespace halflife::cli
