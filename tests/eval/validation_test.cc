// The two means of a validation: over targets, and over batches as in the Trainer of transformers.
#include "eval/validation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "data/prepare/prepare.h"
#include "data/synthetic/mqar.h"
#include "dist/local_communicator.h"
#include "eval/batch_tensors.h"
#include "support/temp_dir.h"

namespace halflife::eval {
namespace {

constexpr int64_t kSeqLen = 16, kRows = 8;

class Validation : public testing::Test {
 protected:
  static model::LanguageModel Model(const char* objective, int64_t vocab_size) {
    model::ModelConfig config = {.vocab_size = vocab_size, .model_dim = 16, .num_layers = 1};
    config.initializer_range = 0.5;  // Gives losses that differ a lot.
    config.mixer = model::MixerConfig("d2d", {{"num_heads", 2}});
    config.objective = model::ObjectiveConfig(objective);
    return model::LanguageModel(config);
  }
  // Returns the result of rank 0 of `world` ranks.
  ValidationResult Run(const data::TokenView& tokens, const char* objective, int64_t batch,
                       int world = 1, int64_t num_windows = 0) const {
    ValidationResult result;
    dist::LocalWorld::Run(world, [&](dist::Communicator& control) {
      model::LanguageModel model = Model(objective, tokens.row_len > 0 ? 64 : 259);
      model.BindOwnMemory(1, false);
      const ValidationResult of_rank = Validate(
          model, tokens, {.seq_len = kSeqLen, .num_windows = num_windows, .batch = batch}, control);
      if (control.rank() == 0) result = of_rank;
    });
    return result;
  }
  data::Dataset Mqar(const std::string& name, const std::vector<data::MqarSegment>& rows) const {
    data::PrepareMqar({.train = {{kSeqLen, 4, kRows}},
                       .validation = rows,
                       .vocab_size = 64,
                       .output = {.out = dir_ / name, .threads = 1}});
    return data::Dataset::Open(dir_ / name);
  }
  test::TempDir dir_;
};

// Property 22 of D2D: if all rows have the same number of targets, there is no padding, and both
// means are equal.
TEST_F(Validation, MeansAgreeWhereNothingIsPadded) {
  const data::Dataset even = Mqar("even", {{kSeqLen, 4, 2 * kRows}});
  const data::TokenView tokens = data::ViewOf(even, data::Split::kValidation);
  for (const int64_t batch : {int64_t{1}, int64_t{3}, kRows}) {
    const ValidationResult result = Run(tokens, "labelled", batch);
    EXPECT_NEAR(result.loss_hf, result.loss, 1e-12 * result.loss) << batch;
    EXPECT_DOUBLE_EQ(result.perplexity_hf(), std::exp(result.loss_hf));
  }
}

// Property 22: rows with 4 targets and rows with 2. In batches of one kind, each batch is weighted
// by its rows, in one batch by its targets. The number of ranks does not matter.
TEST_F(Validation, MeansDifferByThePaddingOfTheBatches) {
  const data::Dataset uneven = Mqar("uneven", {{kSeqLen, 4, kRows}, {kSeqLen, 2, kRows}});
  const data::TokenView tokens = data::ViewOf(uneven, data::Split::kValidation);
  const ValidationResult result = Run(tokens, "labelled", kRows);
  ASSERT_EQ(result.segments.size(), 2u);
  const double four = result.segments[0].loss, two = result.segments[1].loss;
  ASSERT_GT(std::abs(four - two), 1e-3);
  EXPECT_NEAR(result.loss, (4 * four + 2 * two) / 6, 1e-6);
  EXPECT_NEAR(result.loss_hf, (four + two) / 2, 1e-6);
  const ValidationResult one_batch = Run(tokens, "labelled", 2 * kRows);
  EXPECT_NEAR(one_batch.loss_hf, one_batch.loss, 1e-12 * result.loss);
  EXPECT_NEAR(Run(tokens, "labelled", kRows, 2).loss_hf, result.loss_hf, 1e-6);
  EXPECT_NEAR(Run(tokens, "labelled", 3).loss_hf, Run(tokens, "labelled", 3, 4).loss_hf, 1e-6);
}

// Property 22: tokens after the end of a document are not targets in either mean.
TEST_F(Validation, NothingIsAskedOfTheEndOfADocument) {
  {
    std::ofstream text(dir_ / "text.txt");
    for (int line = 0; line < 40; ++line) text << "document " << line << "\n\n";
  }
  data::Prepare({.input = {.paths = {(dir_ / "text.txt").string()}, .tokenizer = "bytes"},
                 .documents = data::DocumentMode::kBlankLines,
                 .output = {.out = dir_ / "text", .threads = 1}});
  const data::Dataset dataset = data::Dataset::Open(dir_ / "text");
  const data::TokenView tokens = data::ViewOf(dataset, data::Split::kTrain);
  const int64_t windows = data::NumWindows(tokens, kSeqLen);
  const data::Batch batch = data::ReadWindows(tokens, kSeqLen, 0, windows);
  const int64_t ends = std::ranges::count(batch.inputs, dataset.info().eos_id);
  ASSERT_GT(ends, 20);
  const ValidationResult result = Run(tokens, "next_token", 4);
  EXPECT_EQ(result.num_targets, windows * kSeqLen - ends);
  EXPECT_NE(result.loss_hf, result.loss) << "windows of different numbers of targets";
}

// A split with two sources in sequence, the first with two tokens. The score covers the windows of
// ChooseWindows, with several of each source, and not the first windows.
TEST_F(Validation, FewWindowsAreSpreadOverTheSplit) {
  constexpr int64_t kWindows = 64, kFew = 12;
  const data::TokenView tokens = {
      .name = "the text",
      .info = {.num_tokens = kWindows * kSeqLen + 1},
      .eos_id = 1,
      .read = [](int64_t begin, std::span<int32_t> ids) {
        for (size_t i = 0; i < ids.size(); ++i) {
          const int64_t at = begin + static_cast<int64_t>(i);
          ids[i] =
              static_cast<int32_t>(at < kWindows / 2 * kSeqLen ? 10 + at % 2 : 100 + at * at % 101);
        }
      }};
  const std::vector<int64_t> chosen = ChooseWindows(kFew, kWindows);
  const auto in_second = [](int64_t window) { return window >= kWindows / 2; };
  const int64_t of_second = std::ranges::count_if(chosen, in_second);
  EXPECT_GE(of_second, 3);
  EXPECT_LE(of_second, kFew - 3);

  const ValidationResult result = Run(tokens, "next_token", 5, 1, kFew);
  EXPECT_EQ(result.num_windows, kFew);
  EXPECT_EQ(result.num_available, kWindows);
  EXPECT_EQ(result.num_targets, kFew * kSeqLen);
  model::LanguageModel model = Model("next_token", 259);
  model.BindOwnMemory(1, false);
  const auto by_hand = [&](const data::Batch& batch) {
    const BatchTensors rows = ToTensors(batch, at::kCPU);
    return model.TokenLosses(rows.inputs, rows.targets, {.slice = &rows.slice})
        .mean()
        .item<double>();
  };
  EXPECT_NEAR(result.loss, by_hand(data::ReadWindows(tokens, kSeqLen, chosen)), 1e-5);
  EXPECT_GT(std::abs(result.loss - by_hand(data::ReadWindows(tokens, kSeqLen, 0, kFew))), 1e-3);
  for (const int world : {2, 3, 5})
    EXPECT_NEAR(Run(tokens, "next_token", 5, world, kFew).loss, result.loss, 1e-6) << world;
}

// A row belongs to the source of its first token, even if the source ends within the row. Sources
// without a scored row are left out. The others add up to the total.
TEST_F(Validation, SourcesPartTheLoss) {
  const data::TokenView tokens = {
      .name = "the text",
      .info = {.num_tokens = 10 * kSeqLen + 1,
               .sources = {{.name = "a", .num_tokens = 2 * kSeqLen + 1},  // Rows 0, 1 and 2.
                           {.name = "b", .num_tokens = kSeqLen - 1},      // Row 2 begins in a.
                           {.name = "c", .num_tokens = 4 * kSeqLen},      // Rows 3 to 6.
                           {.name = "d", .num_tokens = 3 * kSeqLen + 1}}},
      .eos_id = 1,
      .read = [](int64_t begin, std::span<int32_t> ids) {
        for (size_t i = 0; i < ids.size(); ++i) {
          const int64_t at = begin + static_cast<int64_t>(i);
          ids[i] = static_cast<int32_t>(10 + at * at % 101);
        }
      }};
  for (const int world : {1, 3}) {
    const ValidationResult all = Run(tokens, "next_token", 4, world);
    ASSERT_EQ(all.sources.size(), 3u);
    const int64_t expected[] = {3, 4, 3};
    double loss = 0;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(all.sources[i].name, std::string(1, "acd"[i]));
      EXPECT_EQ(all.sources[i].num_targets, expected[i] * kSeqLen);
      EXPECT_FALSE(all.sources[i].accuracy.has_value());
      loss += all.sources[i].loss * static_cast<double>(expected[i]) / 10;
    }
    EXPECT_NEAR(loss, all.loss, 1e-12);
    EXPECT_TRUE(all.segments.empty());
  }
  int64_t targets_of_c = 0;
  for (const PartScore& source : Run(tokens, "next_token", 4, 1, /*num_windows=*/5).sources)
    if (source.name == "c") targets_of_c = source.num_targets;
  const auto in_c = [](int64_t row) { return row >= 3 && row < 7; };
  EXPECT_EQ(targets_of_c, std::ranges::count_if(ChooseWindows(5, 10), in_c) * kSeqLen);
}

// The chosen rows include both kinds, and each counts for its own segment.
TEST_F(Validation, SegmentsOfFewRows) {
  const data::Dataset uneven = Mqar("few", {{kSeqLen, 4, kRows}, {kSeqLen, 2, kRows}});
  const data::TokenView tokens = data::ViewOf(uneven, data::Split::kValidation);
  constexpr int64_t kFew = 6;
  const std::vector<int64_t> chosen = ChooseWindows(kFew, 2 * kRows);
  const int64_t of_four = std::ranges::count_if(chosen, [](int64_t row) { return row < kRows; });
  ASSERT_GT(of_four, 0);
  ASSERT_LT(of_four, kFew);
  const ValidationResult result = Run(tokens, "labelled", 4, 1, kFew);
  ASSERT_EQ(result.segments.size(), 2u);
  EXPECT_EQ(result.segments[0].num_targets, 4 * of_four);
  EXPECT_EQ(result.segments[1].num_targets, 2 * (kFew - of_four));
  EXPECT_NEAR(result.loss,
              (result.segments[0].loss * static_cast<double>(4 * of_four) +
               result.segments[1].loss * static_cast<double>(2 * (kFew - of_four))) /
                  static_cast<double>(result.num_targets),
              1e-9);
}

// Padding rows of a short last step have no targets.
TEST(ApplyObjectives, PaddingHasNoTargets) {
  data::Batch batch;
  batch.batch_size = 2, batch.seq_len = 50;
  batch.inputs.assign(100, 9), batch.targets.assign(100, data::kNoTarget);
  batch.samples = {3, data::kNoSample};
  const auto objective = model::MakeObjective(
      model::ObjectiveConfig("masked_token", {{"rate", 0.5}}), /*vocab_size=*/20);
  ApplyObjective(*objective, /*seed=*/1, batch);
  const auto asked = [&](int64_t begin) {
    return std::count(batch.targets.begin() + begin, batch.targets.begin() + begin + 50, 9);
  };
  EXPECT_GT(asked(0), 10);
  EXPECT_EQ(asked(50), 0);
  EXPECT_EQ(batch.num_targets, asked(0));
}

}  // namespace
}  // namespace halflife::eval
