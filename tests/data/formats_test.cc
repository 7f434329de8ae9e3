// Datasets of formats 1 to 3, written by the programs of their time, read as the same data that is
// prepared today.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/concat.h"
#include "data/examples/prepare_examples.h"
#include "data/manifest.h"
#include "data/shard_layout.h"
#include "data/small_datasets.h"
#include "data/synthetic/mqar.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

fs::path Golden(int version) {
  return fs::path(halflife::test::kSourceDir) / "tests/golden" / Concat("data_v", version);
}

// `fresh` was prepared from the same input as the dataset of the old format.
void ExpectSameData(int version, const fs::path& fresh) {
  SCOPED_TRACE(version);
  const Dataset old = Dataset::Open(Golden(version)), now = Dataset::Open(fresh);
  old.Verify();
  now.Verify();
  EXPECT_NE(old.info().hash, now.info().hash);
  EXPECT_EQ(old.info().row_len, now.info().row_len);
  EXPECT_EQ(old.info().labels, now.info().labels);
  EXPECT_EQ(old.info().classes, now.info().classes);
  const int64_t total = now.split(Split::kTrain).num_tokens;
  ASSERT_GT(total, 0);
  EXPECT_EQ(test::ReadAll(old, Split::kTrain), test::ReadAll(now, Split::kTrain));
  EXPECT_EQ(old.DocumentStarts(Split::kTrain, 0, total),
            now.DocumentStarts(Split::kTrain, 0, total));
  // The shards themselves have not changed since format 1.
  EXPECT_EQ(test::ReadText(Golden(version) / "train-00000.h5"),
            test::ReadText(fresh / "train-00000.h5"));
  EXPECT_TRUE(fs::exists(fresh / "train-00000.index"));
  if (!now.info().has_rows()) return;
  std::vector<int32_t> old_labels(static_cast<size_t>(total)), labels(static_cast<size_t>(total));
  old.ReadLabels(Split::kTrain, 0, old_labels);
  now.ReadLabels(Split::kTrain, 0, labels);
  EXPECT_EQ(old_labels, labels);
}

TEST(FormatsTest, Text) {
  const halflife::test::TempDir dir;
  std::string text;
  for (int i = 1; i <= 30; ++i)
    text += Concat("Document ", i, " has a few words and a number: ", i * i, ".\n\n");
  test::WriteText(dir / "text.txt", text);
  PrepareConfig config = test::ByteConfig(dir / "text.txt", dir / "fresh");
  config.output.shard_tokens = kBlockTokens;
  Prepare(config);
  ExpectSameData(1, dir / "fresh");
}

TEST(FormatsTest, RowsOfATask) {
  const halflife::test::TempDir dir;
  PrepareMqar({.train = {{32, 4, 20}},
               .vocab_size = 64,
               .seed = 42,
               .output = {.out = dir / "fresh", .threads = 1, .shard_tokens = kBlockTokens}});
  ExpectSameData(2, dir / "fresh");
}

TEST(FormatsTest, RowsOfLabelledText) {
  const halflife::test::TempDir dir;
  std::string text = "text\tlabel\n";
  for (int i = 1; i <= 12; ++i)
    text += Concat("this is text ", i, "\t", i % 2 == 0 ? "even" : "odd", "\n");
  test::WriteText(dir / "c.tsv", text);
  PrepareExamples({.labels = RowLabels::kClasses,
                   .input = {.paths = {(dir / "c.tsv").string()},
                             .tokenizer = "bytes",
                             .validation_fraction = 0},
                   .rules = {.row_len = 64},
                   .output = {.out = dir / "fresh", .shard_tokens = kBlockTokens}});
  ExpectSameData(3, dir / "fresh");
}

}  // namespace
}  // namespace halflife::data
