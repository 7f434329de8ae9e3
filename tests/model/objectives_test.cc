// The inputs and targets that each objective makes from a batch of next-token labels.
#include "model/objectives/objective.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/expect_error.h"

namespace halflife::model {
namespace {

constexpr int64_t kBatch = 40, kSeqLen = 250;

struct Rows {
  std::vector<int32_t> inputs = std::vector<int32_t>(kBatch * kSeqLen);
  std::vector<int32_t> labels = std::vector<int32_t>(kBatch * kSeqLen);
  std::vector<uint64_t> samples = std::vector<uint64_t>(kBatch);
  Rows() {
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<int32_t>(10 + i % 80);
      labels[i] = static_cast<int32_t>(10 + (i + 1) % 80);
    }
    std::iota(samples.begin(), samples.end(), uint64_t{7});
  }
  void Label(const ObjectiveConfig& config, uint64_t seed = 1) {
    MakeObjective(config, /*vocab_size=*/100)
        ->Label({.batch = kBatch,
                 .seq_len = kSeqLen,
                 .inputs = inputs,
                 .labels = labels,
                 .samples = samples,
                 .seed = seed});
  }
};

TEST(NextToken, LeavesTheBatchAsItIs) {
  Rows rows;
  rows.Label(ObjectiveConfig("next_token"));
  EXPECT_EQ(rows.inputs, Rows().inputs);
  EXPECT_EQ(rows.labels, Rows().labels);
  EXPECT_TRUE(MakeObjective(ObjectiveConfig(), 100)->predicts_next_token());
}

TEST(Labelled, LeavesTheDatasetsLabelsAsTheyAre) {
  Rows rows;
  rows.Label(ObjectiveConfig("labelled"));
  EXPECT_EQ(rows.inputs, Rows().inputs);
  EXPECT_EQ(rows.labels, Rows().labels);
  const auto objective = MakeObjective(ObjectiveConfig("labelled"), 100);
  EXPECT_TRUE(objective->takes_labels_of_data());
  EXPECT_FALSE(objective->predicts_next_token());
}

TEST(MaskedToken, HidesAShareOfTheTokensAndAsksForThem) {
  Rows rows;
  rows.Label(ObjectiveConfig("masked_token", {{"rate", 0.2}, {"mask_id", 3}}));
  const Rows before;
  double chosen = 0, masked = 0, kept = 0;
  for (size_t i = 0; i < rows.inputs.size(); ++i) {
    if (rows.labels[i] < 0) {
      EXPECT_EQ(rows.inputs[i], before.inputs[i]) << "seen as it is";
      continue;
    }
    EXPECT_EQ(rows.labels[i], before.inputs[i]) << "the label is what stood there";
    EXPECT_TRUE(rows.inputs[i] >= 0 && rows.inputs[i] < 100);
    ++chosen;
    masked += rows.inputs[i] == 3;
    kept += rows.inputs[i] == before.inputs[i];
  }
  const auto n = static_cast<double>(rows.inputs.size());
  // Five standard errors of a share p of n draws, sqrt(p (1 - p) / n).
  EXPECT_NEAR(chosen / n, 0.2, 5 * std::sqrt(0.2 * 0.8 / n));
  EXPECT_NEAR(masked / chosen, 0.801, 5 * std::sqrt(0.8 * 0.2 / chosen));
  EXPECT_NEAR(kept / chosen, 0.101, 5 * std::sqrt(0.1 * 0.9 / chosen));
}

TEST(MaskedToken, IsAFunctionOfSeedSampleAndPosition) {
  const ObjectiveConfig config("masked_token");
  Rows rows, again, other_seed, moved;
  rows.Label(config);
  again.Label(config);
  EXPECT_EQ(again.inputs, rows.inputs);
  EXPECT_EQ(again.labels, rows.labels);
  other_seed.Label(config, 2);
  EXPECT_NE(other_seed.labels, rows.labels);
  // If the first row has the second row's sample number, the same positions are chosen.
  moved.samples[0] = rows.samples[1];
  moved.Label(config);
  for (int64_t t = 0; t < kSeqLen; ++t)
    EXPECT_EQ(moved.labels[t] < 0, rows.labels[kSeqLen + t] < 0) << t;
}

// If the same tokens are in rows of half the length, the same ones are masked, with the same
// replacements.
TEST(MaskedToken, HidesPlacesOfTheTextHoweverItIsCut) {
  const ObjectiveConfig config("masked_token");
  Rows whole, halves;
  std::iota(whole.samples.begin(), whole.samples.end(), uint64_t{0});
  whole.Label(config);
  std::vector<uint64_t> samples(2 * kBatch);
  std::iota(samples.begin(), samples.end(), uint64_t{0});
  MakeObjective(config, 100)
      ->Label({.batch = 2 * kBatch,
               .seq_len = kSeqLen / 2,
               .inputs = halves.inputs,
               .labels = halves.labels,
               .samples = samples,
               .seed = 1});
  EXPECT_EQ(halves.inputs, whole.inputs);
  EXPECT_EQ(halves.labels, whole.labels);
}

// The bytes "ab 7c, d" are repeated. Each of the words "ab", "7c" and "d" is masked as a whole or
// not at all.
TEST(MaskedToken, HidesWholeWords) {
  const std::string text = "ab 7c, d\xc3\xa9\n";
  Rows rows;
  for (size_t i = 0; i < rows.inputs.size(); ++i)
    rows.inputs[i] = 3 + static_cast<uint8_t>(text[i % text.size()]);
  const std::vector<int32_t> before = rows.inputs;
  MakeObjective(ObjectiveConfig("masked_token", {{"whole_words", true}, {"random_share", 0.0}}),
                259)
      ->Label({.batch = kBatch,
               .seq_len = kSeqLen,
               .inputs = rows.inputs,
               .labels = rows.labels,
               .samples = rows.samples,
               .seed = 1});
  double chosen = 0;
  for (int64_t i = 0; i < kBatch * kSeqLen; ++i) {
    chosen += rows.labels[i] >= 0;
    const bool in_word =
        i % kSeqLen > 0 && before[i] != 3 + ' ' && before[i] != 3 + ',' && before[i] != 3 + '\n';
    const bool goes_on = in_word && before[i - 1] != 3 + ' ' && before[i - 1] != 3 + '\n';
    if (!goes_on) continue;
    EXPECT_EQ(rows.labels[i] >= 0, rows.labels[i - 1] >= 0) << i;
    EXPECT_EQ(rows.inputs[i] == before[i], rows.inputs[i - 1] == before[i - 1]) << i;
  }
  // With words of up to three tokens, the share of masked tokens varies more than for independent
  // draws.
  const auto n = static_cast<double>(kBatch * kSeqLen);
  EXPECT_NEAR(chosen / n, 0.15, 5 * std::sqrt(3 * 0.15 * 0.85 / n));
}

TEST(MaskedToken, RefusesWhatCannotBe) {
  const auto make = [](const std::vector<Assignment>& options) {
    MakeObjective(ObjectiveConfig("masked_token", options), 100);
  };
  EXPECT_HL_ERROR(make({{"rate", 0}}), ExitCode::kUsage, "option rate is 0");
  EXPECT_HL_ERROR(make({{"mask_share", 0.95}}), ExitCode::kUsage, "a sum of at most 1");
  EXPECT_HL_ERROR(make({{"mask_id", 100}}), ExitCode::kUsage, "Use a token below 100.");
  EXPECT_HL_ERROR(make({{"whole_words", true}}), ExitCode::kUsage, "the tokenizer bytes",
                  "the model's vocabulary is 100");
}

}  // namespace
}  // namespace halflife::model
