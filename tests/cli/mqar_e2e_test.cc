// A synthetic task with the binary: prepared, trained for epochs, stopped, resumed and scored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;

// 300 rows in steps of 32: ten steps per epoch, of which the last has 12 rows.
class Mqar : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    fixture = std::make_unique<RunFixture>(20000);
    ExpectExit(
        Halflife({"prepare", "--synthetic", "mqar", "--vocab-size", "32", "--seq-len", "16",
                  "--num-pairs", "4", "2", "--examples", "200", "100", "--validation-examples",
                  "30", "--test-examples", "20", "--out", Path("mqar")}),
        0);
    ExpectExit(fixture->Run({.run = "undisturbed", .set = Settings()}), 0);
  }

  static std::vector<std::string> Settings(const std::vector<std::string>& more = {}) {
    return Append(
        {"data.path=" + Path("mqar"), "data.seq_len=16", "data.epoch_end=short",
         "model.objective=labelled", "optimizer.lr=1e-2", "optimizer.decay_all=true",
         "schedule.warmup_steps=0", "schedule.per_epoch=true", "schedule.final_lr_ratio=0",
         "train.global_batch=32", "train.micro_batch=8", "train.max_epochs=3",
         "train.log_samples=true", "eval.windows=0", "eval.every_epochs=1", "ckpt.every=7"},
        more);
  }
};

TEST_F(Mqar, EpochsHaveTheirStepsRatesAndValidations) {
  const auto steps = fixture->Metrics("undisturbed", "loss");
  ASSERT_EQ(steps.size(), 30u);
  int64_t num_targets = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double rate = i < 10 ? 1e-2 : i < 20 ? 7.5e-3 : 2.5e-3;  // (1 + cos(pi e / 3)) / 2.
    EXPECT_NEAR(steps[i]["lr"].get<double>(), rate, 1e-12) << i;
    num_targets += steps[i]["valid_tokens"].get<int64_t>();
  }
  EXPECT_EQ(num_targets, 3 * (200 * 4 + 100 * 2)) << "each label once an epoch";
  // The fixture's recipe sets steps.
  EXPECT_THAT(Read("undisturbed/logs/r00000.log"),
              HasSubstr("train.steps 20 of the recipe is ignored: train.max_epochs "
                        "3 makes 30 steps. Use --set train.max_epochs=0"));
  const auto validations = fixture->Metrics("undisturbed", "val_accuracy");
  ASSERT_EQ(validations.size(), 4u);
  EXPECT_EQ(validations[3]["step"], 30);
  EXPECT_EQ(validations[3]["val_tokens"], 30 * 4 + 30 * 2);
  EXPECT_FALSE(validations[3].contains("val_bits_per_byte"));
  EXPECT_TRUE(validations[3].contains("val_accuracy/seq_len=16,num_kv_pairs=2"));
  EXPECT_LT(validations[3]["val_loss"].get<double>(), validations[0]["val_loss"].get<double>());
}

TEST_F(Mqar, KilledAndResumedOnAnotherNumberOfRanksIsTheSameToTheBit) {
  for (const int ranks : {1, 2}) {
    const std::string run = "killed" + std::to_string(ranks);
    ExpectExit(fixture->Run(
                   {.run = run, .set = Settings(), .env = {{"HL_FAULT", "train.step:kill:19:0"}}}),
               137);
    ExpectExit(fixture->Run({.run = run, .ranks = ranks, .set = Settings()}), 0);
    ExpectEqualBits("undisturbed", run);
  }
}

TEST_F(Mqar, AccuracyEndsARunThatMayGoOnLater) {
  ExpectExit(fixture->Run({.run = "early", .set = Settings({"train.stop_at_accuracy=1e-6"})}), 0);
  EXPECT_EQ(Read("early/DONE"), "step 10\n");
  ExpectExit(fixture->Run({.run = "early", .set = Settings({"train.stop_at_accuracy=1e-6"})}), 0,
             {"nothing to do"});
  EXPECT_EQ(fixture->Metrics("early", "loss").size(), 10u);
  ExpectExit(fixture->Run({.run = "early", .set = Settings()}), 0);
  EXPECT_EQ(Read("early/DONE"), "step 30\n");
  ExpectEqualBits("undisturbed", "early");
}

TEST_F(Mqar, EvalGivesAccuracyBySegmentAndSplit) {
  const auto evaluate = [&](const std::string& split) {
    const RunResult result = ExpectExit(Halflife({"eval", "--model", Path("undisturbed"), "--data",
                                                  Path("mqar"), "--split", split, "--json"}),
                                        0);
    return nlohmann::json::parse(result.out);
  };
  const auto validation = evaluate("validation");
  const auto trained = fixture->Metrics("undisturbed", "val_accuracy").back();
  EXPECT_EQ(validation["accuracy"], trained["val_accuracy"]);
  EXPECT_EQ(validation["segments"][0]["accuracy"],
            trained["val_accuracy/seq_len=16,num_kv_pairs=4"]);
  EXPECT_FALSE(validation.contains("bits_per_byte"));
  const auto test = evaluate("test");
  EXPECT_EQ(test["tokens"], 20 * 4 + 20 * 2);
  EXPECT_EQ(test["segments"].size(), 2u);
  const RunResult text = Halflife({"eval", "--model", Path("undisturbed"), "--data", Path("mqar")});
  EXPECT_THAT(text.out, HasSubstr("accuracy    "));
  EXPECT_THAT(text.out, HasSubstr("seq_len=16,num_kv_pairs=2: "));
}

TEST_F(Mqar, WhatDoesNotFitIsRefusedWithWhatWould) {
  const auto refused = [&](const std::string& run, const std::vector<std::string>& set,
                           const std::string& words) {
    ExpectExit(fixture->Run({.run = run, .set = Settings(set)}), 2, {words});
    EXPECT_FALSE(std::filesystem::exists(fixture->path(run)));
  };
  refused("next", {"model.objective=next_token"}, "Use model { objective { labelled {} } }.");
  refused("text", {"data.path=" + Path("data")}, "holds text, which has no labels of its own");
  refused("short", {"data.seq_len=8"}, "labelled rows of 16 tokens");
  refused("no_split", {"eval.split=train"}, "Use one of validation, test");
  refused("no_epochs", {"train.max_epochs=0"}, "Use false, or set train.max_epochs");
  refused("steps", {"train.steps=20"}, "train.steps=20 would be ignored: train.max_epochs 3");
  refused("prompt", {"eval.sample_prompt=the"}, "which generates no text");
  const auto fails = [&](const std::vector<std::string>& command, const std::string& words) {
    ExpectExit(Halflife(command), 2, {words});
  };
  fails({"generate", "--model", Path("undisturbed"), "--prompt", "the"},
        "the model's objective is labelled, which cannot generate text. Use a model with the "
        "objective "
        "next_token.");
  fails({"eval", "--model", Path("undisturbed"), "--text", Path("text.txt")},
        "it cannot score plain text");
  fails({"eval", "--model", Path("undisturbed"), "--data", Path("mqar"), "--bigram"},
        "Use a dataset of text.");
}

}  // namespace
}  // namespace halflife::test
