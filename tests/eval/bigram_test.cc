// The bigram model is scored on the same windows as the language model.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "data/prepare/prepare.h"
#include "data/token_source.h"
#include "eval/validation.h"
#include "support/temp_dir.h"

namespace halflife::eval {
namespace {

constexpr int64_t kSeqLen = 8;

TEST(Bigram, IsScoredOnTheSplitThatIsAskedFor) {
  const test::TempDir dir;
  std::ofstream(dir / "train.txt") << "the old stone walls and the green hills over the river";
  std::ofstream(dir / "validation.txt") << "a small boat sang past the rain";
  data::Prepare({.input = {.paths = {(dir / "train.txt").string()},
                           .validation_paths = {(dir / "validation.txt").string()},
                           .tokenizer = "bytes"},
                 .documents = data::DocumentMode::kFile,
                 .output = {.out = dir / "text", .threads = 1}});
  const auto dataset = data::Dataset::Open(dir / "text");
  const auto vocab = static_cast<double>(dataset.info().vocab_size);

  std::map<std::pair<int32_t, int32_t>, double> pairs;
  std::map<int32_t, double> firsts;
  const auto windows = [&](data::Split split, int64_t num_windows) {
    const data::TokenView tokens = data::ViewOf(dataset, split);
    return data::ReadWindows(tokens, kSeqLen,
                             ChooseWindows(num_windows, data::NumWindows(tokens, kSeqLen)));
  };
  const data::Batch counted = windows(data::Split::kTrain, 0);
  for (size_t i = 0; i < counted.inputs.size(); ++i) {
    if (counted.targets[i] == data::kNoTarget) continue;
    ++pairs[{counted.inputs[i], counted.targets[i]}];
    ++firsts[counted.inputs[i]];
  }
  using Case = std::pair<data::Split, int64_t>;  // The split and the number of windows; 0: all.
  for (const auto& [split, num_windows] :
       {Case{data::Split::kTrain, 0}, Case{data::Split::kTrain, 2}, Case{data::Split::kTrain, 3},
        Case{data::Split::kValidation, 0}, Case{data::Split::kValidation, 1}}) {
    SCOPED_TRACE(testing::Message() << data::Name(split) << ", " << num_windows);
    const data::Batch scored = windows(split, num_windows);
    double loss = 0;
    int64_t num_targets = 0;
    for (size_t i = 0; i < scored.inputs.size(); ++i) {
      if (scored.targets[i] == data::kNoTarget) continue;
      loss -= std::log((pairs[{scored.inputs[i], scored.targets[i]}] + 1) /
                       (firsts[scored.inputs[i]] + vocab));
      ++num_targets;
    }
    loss /= static_cast<double>(num_targets);
    const BigramResult result = ScoreBigram(dataset, split, kSeqLen, num_windows);
    EXPECT_EQ(result.num_targets, num_targets);
    EXPECT_NEAR(result.loss, loss, 1e-12);
    EXPECT_NEAR(result.bits_per_byte, data::BitsPerByte(loss, dataset.split(split)), 1e-12);
  }
}

}  // namespace
}  // namespace halflife::eval
