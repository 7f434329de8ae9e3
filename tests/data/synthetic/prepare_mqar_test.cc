// `prepare --synthetic mqar`: the dataset contains what the generator makes, and damage is
// detected.
#include "data/synthetic/mqar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/concat.h"
#include "data/batch.h"
#include "data/shard_layout.h"
#include "data/small_datasets.h"
#include "data/synthetic/numpy_mqar.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;
using test::ReadText;
using test::WriteText;

PrepareMqarConfig Small(const fs::path& out) {
  return {.train = {{16, 4, 3000}, {8, 1, 500}},
          .validation = {{16, 2, 40}},
          .test = {{16, 4, 30}},
          .vocab_size = 64,
          .seed = 5,
          .output = {.out = out, .threads = 1, .shard_tokens = kBlockTokens}};
}

LabelledRows ReadRows(const Dataset& dataset, Split split) {
  LabelledRows rows = {.inputs = test::ReadAll(dataset, split), .labels = {}};
  rows.labels.resize(rows.inputs.size());
  dataset.ReadLabels(split, 0, rows.labels);
  return rows;
}

LabelledRows First(const LabelledRows& rows, int64_t num_tokens) {
  return {.inputs = {rows.inputs.begin(), rows.inputs.begin() + num_tokens},
          .labels = {rows.labels.begin(), rows.labels.begin() + num_tokens}};
}

TEST(PrepareMqar, WhatIsReadIsWhatTheGeneratorMakes) {
  const TempDir dir;
  for (const MqarGenerator generator : {MqarGenerator::kNative, MqarGenerator::kNumpyCompat}) {
    PrepareMqarConfig config = Small(dir / Concat("data", static_cast<int>(generator)));
    config.generator = generator;
    const MqarSummary summary = PrepareMqar(config);
    const Dataset dataset = Dataset::Open(config.output.out);
    dataset.Verify();
    EXPECT_EQ(dataset.info().hash, summary.hash);
    EXPECT_EQ(dataset.info().row_len, 16);
    EXPECT_GE(dataset.info().train.num_shards, 2) << "rows should cross shards";
    const LabelledRows found = ReadRows(dataset, Split::kTrain);
    ASSERT_EQ(found.inputs.size(), 3500u * 16);

    const MqarConfig first = {.vocab_size = 64, .seq_len = 16, .num_pairs = 4, .seed = 5};
    const LabelledRows expected =
        LayOutMqar(first,
                   generator == MqarGenerator::kNative ? DrawMqar(first, 0, 3000)
                                                       : NumpyMqarDraws(first, 3000).Next(3000),
                   0);
    EXPECT_EQ(First(found, 3000 * 16).inputs, expected.inputs);
    EXPECT_EQ(First(found, 3000 * 16).labels, expected.labels);
    for (size_t row = 3000; row < 3500; ++row) {  // Padded from 8 tokens.
      for (size_t t = 8; t < 16; ++t) {
        EXPECT_EQ(found.inputs[16 * row + t], 0);
        EXPECT_EQ(found.labels[16 * row + t], kNoTarget);
      }
    }
  }
}

TEST(PrepareMqar, TheManifestSaysWhatWasMade) {
  const TempDir dir;
  PrepareMqar(Small(dir / "data"));
  const Dataset dataset = Dataset::Open(dir / "data");
  const DatasetInfo& info = dataset.info();
  EXPECT_TRUE(info.has_rows());
  EXPECT_EQ(info.vocab_size, 64);
  EXPECT_EQ(info.tokenizer_kind, "");
  EXPECT_EQ(info.generator, "mqar native 1: power 0.01, random_non_queries false, seed 5");
  ASSERT_EQ(info.train.segments.size(), 2u);
  EXPECT_EQ(info.train.segments[0].name, "seq_len=16,num_kv_pairs=4");
  EXPECT_EQ(info.train.segments[0].seed, 5u);
  EXPECT_EQ(info.train.segments[1].num_rows, 500);
  EXPECT_EQ(info.train.segments[1].seed, 105u);
  EXPECT_EQ(info.validation.segments[0].seed, 25u);
  EXPECT_EQ(info.test.segments[0].seed, 15u);
  EXPECT_EQ(info.test.num_documents, 30);
  EXPECT_EQ(dataset.DocumentStarts(Split::kTest, 0, 64), (std::vector<int64_t>{0, 16, 32, 48}));
  EXPECT_HL_ERROR(dataset.LoadTokenizer(), ExitCode::kUsage, "labelled rows", "no tokenizer");
}

TEST(PrepareMqar, SameBytesForAnyNumberOfThreads) {
  const TempDir dir;
  for (const int threads : {1, 3}) {
    PrepareMqarConfig config = Small(dir / Concat("threads", threads));
    config.train.push_back({16, 3, 40000});  // More than one unit of work.
    config.output.threads = threads;
    PrepareMqar(config);
  }
  EXPECT_EQ(test::FolderFingerprint(dir / "threads1"), test::FolderFingerprint(dir / "threads3"));
}

// If any byte is changed, reading either returns what was written or names the file. (Most of this
// small file is the unused end of a block, which is never read.)
TEST(PrepareMqar, ADamagedShardNeverGivesOtherRows) {
  const TempDir dir;
  PrepareMqar(Small(dir / "data"));
  const LabelledRows expected = ReadRows(Dataset::Open(dir / "data"), Split::kTest);
  const fs::path shard = dir / "data" / "test-00000.h5";
  const std::string bytes = ReadText(shard);
  int num_caught = 0;
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 499) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    WriteText(shard, damaged);
    try {
      const LabelledRows found = ReadRows(Dataset::Open(dir / "data"), Split::kTest);
      EXPECT_EQ(found.inputs, expected.inputs) << "byte " << at;
      EXPECT_EQ(found.labels, expected.labels) << "byte " << at;
    } catch (const Error& error) {
      ++num_caught;
      EXPECT_THAT(error.what(), testing::HasSubstr("test-00000.h5"));
    }
  }
  EXPECT_GT(num_caught, 10);
  WriteText(shard, bytes);
  // Finds a byte of a label by its value: the first label that has a target.
  const auto first =
      std::ranges::find_if(expected.labels, [](int32_t label) { return label >= 0; });
  const std::string stored = {static_cast<char>(*first), 0, 0, 0, static_cast<char>(0x9c)};
  const size_t place = bytes.rfind(stored);
  ASSERT_NE(place, std::string::npos);
  std::string damaged = bytes;
  damaged[place] = static_cast<char>(damaged[place] ^ 1);
  WriteText(shard, damaged);
  EXPECT_HL_ERROR(ReadRows(Dataset::Open(dir / "data"), Split::kTest), ExitCode::kData,
                  "test-00000.h5");
}

TEST(PrepareMqar, StopsAndLeavesNothing) {
  const TempDir dir;
  PrepareMqarConfig config = Small(dir / "data");
  const std::atomic<bool> stop{true};
  config.output.stop = &stop;
  EXPECT_HL_ERROR(PrepareMqar(config), ExitCode::kInterrupted, "stopped by a signal");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(PrepareMqar, RefusesWhatCannotBe) {
  const TempDir dir;
  PrepareMqarConfig config = Small(dir / "data");
  config.validation = {{16, 5, 10}};
  EXPECT_HL_ERROR(PrepareMqar(config), ExitCode::kUsage, "num_pairs 5", "Use 1 to 4.");
  config.validation = {{16, 4, -1}};
  EXPECT_HL_ERROR(PrepareMqar(config), ExitCode::kUsage, "-1 examples");
  config = Small(dir / "data");
  config.train = {};
  EXPECT_HL_ERROR(PrepareMqar(config), ExitCode::kUsage, "no rows. Use --examples 1 or more");
  config = Small(dir / "data");
  config.output.threads = -1;
  EXPECT_HL_ERROR(PrepareMqar(config), ExitCode::kUsage, "--threads -1", "Use 0 for all cores");
  config = Small(dir / "data");
  config.output.shard_tokens = 10;
  EXPECT_HL_ERROR(PrepareMqar(config), ExitCode::kUsage, "--shard-tokens 10", "32768");
  config = Small("");
  EXPECT_HL_ERROR(PrepareMqar(config), ExitCode::kUsage, "Use --out DIR.");
  EXPECT_FALSE(fs::exists(dir / "data"));
}

}  // namespace
}  // namespace halflife::data
