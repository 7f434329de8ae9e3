// Tables of loss by length: every length on the same targets, methods that change nothing where
// they need not, and the ways in which neither fits.
#include "eval/length_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "data/prepare.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::eval {
namespace {

constexpr int64_t kTrainLen = 16;

class LengthTables : public testing::Test {
 protected:
  LengthTables() {
    {
      std::ofstream text(dir_ / "text.txt");
      for (int line = 0; line < 60; ++line) text << "line " << line * line % 97 << " of one text\n";
    }
    data::Prepare({.inputs = {(dir_ / "text.txt").string()},
                   .tokenizer = "bytes",
                   .out = dir_ / "text",
                   .documents = data::DocumentMode::kFile,
                   .validation_fraction = 0,
                   .threads = 1});
    dataset_.emplace(data::Dataset::Open(dir_ / "text"));
  }
  static model::ModelConfig Config(const model::MixerConfig& mixer) {
    model::ModelConfig config = {.vocab_size = 259, .model_dim = 16, .num_layers = 2};
    config.initializer_range = 0.5;
    config.mixer = mixer;
    return config;
  }
  static model::ModelConfig Softmax(double rope_theta = 10000) {
    return Config(
        model::MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"rope_theta", rope_theta}}));
  }
  LengthRow Score(const std::string& method, int64_t length, int world = 1, int64_t bin = 0,
                  const model::ModelConfig& config = Softmax()) const {
    const LengthTable table = {.train_len = kTrainLen,
                               .lengths = {16, 32, 128},
                               .num_stretches = 3,
                               .batch_tokens = 64,
                               .bin = bin};
    LengthRow row;
    dist::LocalWorld::Run(world, [&](dist::Communicator& control) {
      model::LanguageModel model(config);
      model.BindOwnMemory(1, false);
      const LengthRow of_rank = ScoreLength(model, data::ViewOf(*dataset_, data::Split::kTrain),
                                            table, LengthMethod::Parse(method), length, control);
      if (control.rank() == 0) row = of_rank;
    });
    return row;
  }
  double Loss(const std::string& method, int64_t length) const {
    return Score(method, length).result.loss;
  }

  test::TempDir dir_;
  std::optional<data::Dataset> dataset_;
};

TEST_F(LengthTables, EveryLengthScoresTheSameTargets) {
  for (const int64_t length : {16, 32, 128})
    EXPECT_EQ(Score("as_trained", length).result.num_targets, 3 * 128);
  EXPECT_GT(std::abs(Loss("as_trained", 16) - Loss("as_trained", 128)), 1e-3);
}

// Patterns and scales leave rows alone that are no longer than those of training; a stretch of 1 is
// plain rotation, whose frequencies are formed in another order.
TEST_F(LengthTables, MethodsAreTheModelItselfAtTheTrainingLength) {
  const double as_trained = Loss("as_trained", kTrainLen);
  for (const char* method :
       {"window", "blocks", "blocks+sinks", "info_scale", "log_scale", "window+info_scale"})
    EXPECT_EQ(Loss(method, kTrainLen), as_trained) << method;
  for (const char* method : {"interpolated", "ntk_aware", "yarn", "rerope:16", "lm_infinite:16",
                             "streaming_llm:16", "leaky_rerope:1"})
    EXPECT_NEAR(Loss(method, kTrainLen), as_trained, 1e-5) << method;
}

TEST_F(LengthTables, MethodsChangeLongerRows) {
  const double as_trained = Loss("as_trained", 128);
  for (const char* method :
       {"window", "blocks", "window:8+sinks", "streaming_llm", "lm_infinite", "rerope",
        "leaky_rerope", "interpolated", "ntk_aware", "yarn", "info_scale", "log_scale"})
    EXPECT_GT(std::abs(Loss(method, 128) - as_trained), 1e-5) << method;
  EXPECT_EQ(Loss("window:128", 128), as_trained);
}

TEST_F(LengthTables, RanksShareTheWork) {
  for (const char* method : {"as_trained", "yarn+info_scale"}) {
    const LengthRow one = Score(method, 32, 1, /*bin=*/10), three = Score(method, 32, 3, 10);
    EXPECT_NEAR(three.result.loss, one.result.loss, 1e-6);
    ASSERT_EQ(three.result.positions.size(), one.result.positions.size());
    for (size_t i = 0; i < one.result.positions.size(); ++i)
      EXPECT_NEAR(three.result.positions[i].loss, one.result.positions[i].loss, 1e-6);
  }
}

TEST_F(LengthTables, BinsOfPositionsMakeUpTheWhole) {
  const ValidationResult result = Score("as_trained", 32, 1, /*bin=*/12).result;
  ASSERT_EQ(result.positions.size(), 3u);  // of 12, 12 and 8
  EXPECT_EQ(result.positions[2].begin, 24);
  EXPECT_EQ(result.positions[0].num_targets, 12 * 12);
  EXPECT_EQ(result.positions[2].num_targets, 12 * 8);
  double loss = 0;
  for (const PositionScore& bin : result.positions)
    loss += bin.loss * static_cast<double>(bin.num_targets);
  EXPECT_NEAR(loss / static_cast<double>(result.num_targets), result.loss, 1e-9);
  // the first tokens of a row know nothing of what came before, the same at any length
  const ValidationResult shorter = Score("as_trained", 16, 1, /*bin=*/16).result;
  EXPECT_EQ(shorter.positions.size(), 1u);
}

TEST_F(LengthTables, SayWhatDoesNotFit) {
  const auto score = [&](const std::string& method, const model::ModelConfig& config) {
    Score(method, 32, 1, 0, config);
  };
  EXPECT_HL_ERROR(score("blocks", Config(model::MixerConfig("gla", {{"num_heads", int64_t{2}}}))),
                  ExitCode::kUsage, "--method blocks is of softmax attention", "as_trained");
  EXPECT_HL_ERROR(score("yarn", Softmax(/*rope_theta=*/0)), ExitCode::kUsage,
                  "--method yarn turns queries and keys", "trained without");
  model::ModelConfig alibi = Softmax();
  alibi.positions = model::PositionsConfig("alibi");
  EXPECT_HL_ERROR(score("rerope", alibi), ExitCode::kUsage, "positions are alibi");
  score("window+info_scale", alibi);
  EXPECT_HL_ERROR(LengthMethod::Parse("magic"), ExitCode::kUsage,
                  "there is no 'magic'; known:", "\n  blocks:B         blockwise causal");
  EXPECT_HL_ERROR(LengthMethod::Parse("window:x"), ExitCode::kUsage,
                  "'x' where window takes a whole number above 0");
  EXPECT_HL_ERROR(LengthMethod::Parse("as_trained:3"), ExitCode::kUsage, "takes no number");
  EXPECT_HL_ERROR(LengthMethod::Parse("window+"), ExitCode::kUsage, "there is no ''");

  model::LanguageModel model(Softmax());
  EXPECT_HL_ERROR(RequireLengths(model, {.train_len = 16, .lengths = {16, 24, 32}}),
                  ExitCode::kUsage, "24 does not divide the longest, 32");
  model::ModelConfig learned = Softmax(0);
  learned.positions = model::PositionsConfig("learned", {{"max_positions", int64_t{64}}});
  model::LanguageModel with_table(learned);
  EXPECT_HL_ERROR(RequireLengths(with_table, {.train_len = 16, .lengths = {64, 128}}),
                  ExitCode::kUsage, "knows 64 positions, fewer than 128", "at most 64");
}

}  // namespace
}  // namespace halflife::eval
