// Reading a dataset: any range equals the whole, and damage of any byte is detected.
#include "data/dataset.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numbers>
#include <thread>

#include "core/clock.h"
#include "core/concat.h"
#include "data/manifest.h"
#include "data/prepare/shard_writer.h"
#include "data/shard_layout.h"
#include "data/shard_reader.h"
#include "data/small_datasets.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/unreadable.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;
using test::ReadAll;
using test::ReadText;
using test::WriteText;

// Three shards with more than one block each. Documents cross the boundaries of both.
class DatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    documents_ = test::RandomDocuments(1500, 1);
    documents_.push_back(std::string(50000, 'x'));
    WriteText(dir_ / "a.txt", test::JoinByBlankLines(documents_));
    PrepareConfig config = test::ByteConfig(dir_ / "a.txt", out());
    config.output.shard_tokens = 80000;
    Prepare(config);
  }
  fs::path out() const { return dir_ / "out"; }
  fs::path shard(int i) const { return out() / Concat("train-0000", i, ".h5"); }

  uint64_t HeaderBytes() const {
    const ShardRecord record = ReadManifest(out() / kManifestName).train.shards[0];
    return ReadIndex(out(), record, /*has_labels=*/false)->header_bytes;
  }

  TempDir dir_;
  std::vector<std::string> documents_;
};

TEST_F(DatasetTest, AnyRangeEqualsTheWhole) {
  const Dataset dataset = Dataset::Open(out());
  ASSERT_GE(dataset.info().train.num_shards, 3);
  const std::vector<int32_t> all = ReadAll(dataset, Split::kTrain);
  const auto total = static_cast<int64_t>(all.size());
  for (const int64_t begin :
       {int64_t{0}, kBlockTokens - 1, kBlockTokens, int64_t{79990}, total - 5}) {
    for (const int64_t length : {0, 1, 5, 40000, 120000}) {
      if (begin + length > total) continue;
      std::vector<int32_t> part(static_cast<size_t>(length));
      dataset.Read(Split::kTrain, begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin))
          << begin << " " << length;
    }
  }
}

// The cost of a text in bits is the cost of its targets, for any tokenizer.
TEST(BitsPerByteTest, SharesTheCostOfAllTargetsAmongAllBytes) {
  // Two documents of 6 and 4 bytes in 3 and 2 tokens, each with its eos: 3 + 2 targets.
  const SplitInfo pieces{.num_tokens = 7, .num_documents = 2, .num_bytes = 10, .num_shards = 1};
  EXPECT_DOUBLE_EQ(BitsPerByte(4 * std::numbers::ln2, pieces), 4 * 5 / 10.0);
  const SplitInfo bytes{.num_tokens = 12, .num_documents = 2, .num_bytes = 10, .num_shards = 1};
  EXPECT_DOUBLE_EQ(BitsPerByte(1.25, bytes), 1.25 / std::numbers::ln2);
  EXPECT_DOUBLE_EQ(BitsPerByte(4 * std::numbers::ln2, pieces, /*reset_at_documents=*/false),
                   4 * (pieces.num_tokens - 1) / static_cast<double>(pieces.num_bytes))
      << "every token but the first is a target";
}

// A row of a text with one document contains no other document, and a row of a task never does.
TEST(DatasetInfoTest, RowsArePackedWhereASplitHasSeveralDocuments) {
  DatasetInfo info;
  info.train.num_documents = info.validation.num_documents = 1;
  EXPECT_FALSE(info.packs_documents());
  info.validation.num_documents = 2;
  EXPECT_TRUE(info.packs_documents());
  info.row_len = 64;
  EXPECT_TRUE(info.packs_documents());
  info.labels = RowLabels::kTask;
  EXPECT_FALSE(info.packs_documents());
}

TEST_F(DatasetTest, DocumentStartsFollowEachEos) {
  const Dataset dataset = Dataset::Open(out());
  const std::vector<int32_t> all = ReadAll(dataset, Split::kTrain);
  std::vector<int64_t> expected = {0};
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i] == dataset.info().eos_id) expected.push_back(static_cast<int64_t>(i) + 1);
  }
  const auto total = static_cast<int64_t>(all.size());
  EXPECT_EQ(dataset.DocumentStarts(Split::kTrain, 0, total), expected);
  for (const int64_t begin :
       {int64_t{0}, int64_t{1}, expected[7], expected[7] + 1, int64_t{79999}}) {
    for (const int64_t end : {begin, begin + 100, int64_t{80000}, total}) {
      std::vector<int64_t> part;
      for (const int64_t start : expected) {
        if (start >= begin && start < end) part.push_back(start);
      }
      EXPECT_EQ(dataset.DocumentStarts(Split::kTrain, begin, end), part) << begin << " " << end;
    }
  }
}

TEST_F(DatasetTest, ThreadsMayShareIt) {
  const Dataset dataset = Dataset::Open(out());
  const std::vector<int32_t> all = ReadAll(dataset, Split::kTrain);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<int32_t> part(1000);
      for (int64_t begin = t * 700; begin + 1000 < static_cast<int64_t>(all.size());
           begin += 9973) {
        dataset.Read(Split::kTrain, begin, part);
        wrong += !std::equal(part.begin(), part.end(), all.begin() + begin);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Blocks that were read and verified stay in memory if the file changes. Other blocks are verified
// when read.
TEST_F(DatasetTest, ABlockIsReadOnce) {
  const Dataset dataset = Dataset::Open(out());
  std::vector<int32_t> first(64), again(64);
  dataset.Read(Split::kTrain, 3, first);
  std::string damaged = ReadText(shard(0));
  const uint64_t header_bytes = HeaderBytes();
  for (size_t at = header_bytes; at < damaged.size(); ++at)
    damaged[at] = static_cast<char>(~damaged[at]);
  WriteText(shard(0), damaged);
  dataset.Read(Split::kTrain, 3, again);
  EXPECT_EQ(again, first);
  EXPECT_HL_ERROR(dataset.Read(Split::kTrain, kBlockTokens, again), ExitCode::kData,
                  "train-00000.h5", "damaged");
  EXPECT_HL_ERROR(dataset.Verify(), ExitCode::kData, "train-00000.h5", "damaged");
}

TEST_F(DatasetTest, AFileIsNoDataset) {
  const TempDir dir;
  const auto refuse = [&](const char* name, const std::string& options) {
    const std::string path = (dir / name).string();
    WriteText(path, "ab");
    EXPECT_HL_ERROR(Dataset::Open(path), ExitCode::kData,
                    path + " is a file, not a dataset folder. ",
                    "`halflife prepare --input " + path + options +
                        " --tokenizer TOKENIZER --out " + (dir / "train.data").string() + "`.");
  };
  refuse("train.txt", "");
  refuse("train.bin", " --in-place --validation-fraction 0");
}

TEST_F(DatasetTest, AFolderOfAnotherUserIsNotMissing) {
  const TempDir dir;
  const halflife::test::Unreadable unreadable(dir.path());
  EXPECT_HL_ERROR(ReadManifest(dir / kManifestName), ExitCode::kData, "cannot open ",
                  "Permission denied (errno 13). Check its permissions");
}

TEST_F(DatasetTest, MissingAndCutShards) {
  const std::string bytes = ReadText(shard(1));
  WriteText(shard(1), bytes.substr(0, bytes.size() - 1));
  EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "train-00001.h5", "truncated",
                  "halflife prepare");
  WriteText(shard(1), bytes + "x");
  EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "train-00001.h5", "overwritten");
  fs::remove(shard(1));
  EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "train-00001.h5", "is missing",
                  "halflife prepare");
}

TEST_F(DatasetTest, NoFlippedBitGoesUnnoticed) {
  const std::string bytes = ReadText(shard(0));
  const uint64_t header_bytes = HeaderBytes();
  const std::vector<int32_t> expected = ReadAll(Dataset::Open(out()), Split::kTrain);
  int noticed_by_open = 0, noticed_by_read = 0, places = 0;  // places: within blocks.
  for (size_t at = 0; at < bytes.size(); at += at < header_bytes ? 61 : 997) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    WriteText(shard(0), damaged);
    if (at < header_bytes) {
      EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "header", "train-00000.h5");
      ++noticed_by_open;
      continue;
    }
    ++places;
    const Dataset dataset = Dataset::Open(out());
    EXPECT_HL_ERROR(dataset.Verify(), ExitCode::kData, "train-00000.h5", "damaged");
    try {
      EXPECT_EQ(ReadAll(dataset, Split::kTrain), expected) << "byte " << at;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      ++noticed_by_read;
    }
  }
  EXPECT_GT(noticed_by_open, 100);
  // Read detects damage in all token blocks. It does not touch the document starts and the unused
  // end of the last block.
  EXPECT_GT(noticed_by_read, places / 2);
}

TEST_F(DatasetTest, ADamagedOrMissingIndexIsNamed) {
  const fs::path index = out() / "train-00001.index";
  const std::string bytes = ReadText(index);
  for (size_t at = 0; at < bytes.size(); at += 7) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    WriteText(index, damaged);
    EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "train-00001.index",
                    "does not have the hash of the manifest", "halflife prepare");
  }
  WriteText(index, bytes.substr(0, bytes.size() - 8));
  EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "train-00001.index");
  fs::remove(index);
  EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "train-00001.index",
                  "the index of the token shard train-00001.h5, is missing");
}

TEST_F(DatasetTest, DamagedDocumentStarts) {
  const std::string bytes = ReadText(shard(0));
  int noticed = 0;
  for (size_t at = bytes.size() - 70000; at < bytes.size(); at += 499) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    WriteText(shard(0), damaged);
    const Dataset dataset = Dataset::Open(out());
    try {
      const auto starts = dataset.DocumentStarts(Split::kTrain, 0, 80000);
      EXPECT_EQ(starts.front(), 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      ++noticed;
    }
  }
  EXPECT_GT(noticed, 0);
}

// A valid frame around an invalid hash, as a faulty or malicious writer would leave.
TEST_F(DatasetTest, AHashThatIsNone) {
  const fs::path path = out() / kManifestName;
  const std::string bytes = ReadText(path);
  const std::string hash = ToHex(ReadManifest(path).tokenizer_files[0].hash);
  const size_t at = bytes.find(hash);
  ASSERT_NE(at, std::string::npos);
  for (const size_t digit : {0, 31}) {
    std::string forged = bytes.substr(0, bytes.size() - 16);
    forged[at + digit] = 'g';
    const Hash128 frame = HashBytes(forged);
    for (const uint64_t word : {frame.hi, frame.lo}) {
      for (int shift = 56; shift >= 0; shift -= 8) forged += static_cast<char>(word >> shift);
    }
    WriteText(path, forged);
    EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "manifest.pb", "contradicts itself");
  }
}

TEST_F(DatasetTest, DamagedManifest) {
  const fs::path path = out() / kManifestName;
  const std::string bytes = ReadText(path);
  for (size_t at = 0; at < bytes.size(); at += 7) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    WriteText(path, damaged);
    EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "manifest.pb");
    WriteText(path, bytes.substr(0, at));
    EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "manifest.pb");
  }
  fs::remove(path);
  EXPECT_HL_ERROR(Dataset::Open(out()), ExitCode::kData, "manifest.pb is missing",
                  "not a prepared dataset");
  EXPECT_HL_ERROR(Dataset::Open(dir_ / "nowhere"), ExitCode::kData, "no dataset folder", "nowhere");
}

TEST_F(DatasetTest, DamagedTokenizer) {
  const Dataset dataset = Dataset::Open(out());
  EXPECT_EQ(dataset.LoadTokenizer()->kind(), "bytes");
  WriteText(out() / "tokenizer/kind.txt", "byteS\n");
  EXPECT_HL_ERROR(dataset.LoadTokenizer(), ExitCode::kData, "kind.txt", "damaged");
  EXPECT_HL_ERROR(dataset.Verify(), ExitCode::kData, "kind.txt", "damaged");
}

// Writes a dataset by hand, with ids that may be outside a vocabulary of `vocab_size`.
void WriteByHand(const fs::path& folder, int vocab_size, const std::vector<int32_t>& ids) {
  fs::create_directories(folder);
  ShardWriter writer({.folder = folder,
                      .split = Split::kTrain,
                      .token_bytes = TokenBytes(vocab_size),
                      .shard_tokens = kBlockTokens});
  writer.BeginDocument();
  writer.Append(ids);
  Manifest manifest;
  manifest.tokenizer_kind = "bytes";
  manifest.vocab_size = vocab_size;
  manifest.eos_id = 1;
  manifest.train = writer.Finish();
  WriteText(folder / kManifestName, FrameManifest(manifest));
}

TEST(DatasetByHandTest, IdsBeyondTheVocabularyAreRefused) {
  const TempDir dir;
  WriteByHand(dir / "bad", 259, {5, 258, 259, 1});
  const Dataset dataset = Dataset::Open(dir / "bad");
  std::vector<int32_t> ids(4);
  EXPECT_HL_ERROR(dataset.Read(Split::kTrain, 0, ids), ExitCode::kData,
                  "token 2 of the token shard", "is 259", "259 ids");
}

TEST(DatasetByHandTest, LargeVocabulariesTakeFourBytes) {
  const TempDir dir;
  const std::vector<int32_t> expected = {65536, 99999, 0, 1};
  WriteByHand(dir / "large", 100000, expected);
  EXPECT_EQ(ReadAll(Dataset::Open(dir / "large"), Split::kTrain), expected);
}

TEST(DatasetByHandTest, MoreShardsThanOpenFiles) {
  const TempDir dir;
  std::vector<int32_t> ids(static_cast<size_t>(140 * kBlockTokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % 60000);
  WriteByHand(dir / "many", 60000, ids);
  const Dataset dataset = Dataset::Open(dir / "many");
  EXPECT_EQ(dataset.info().train.num_shards, 140);
  for (int round = 0; round < 2; ++round) EXPECT_EQ(ReadAll(dataset, Split::kTrain), ids);
}

// A shard is opened once, until the limit of descriptors or of index bytes closes it.
TEST_F(DatasetTest, ShardsStayOpenUpToTheLimits) {
  const Manifest manifest = ReadManifest(out() / kManifestName);
  ASSERT_GE(manifest.train.shards.size(), 3u);
  const auto opened = [&](const OpenShardLimits& limits) {
    OpenShards shards(out(), manifest.vocab_size, 0, limits);
    for (int round = 0; round < 4; ++round)
      for (size_t i = 0; i < 3; ++i) shards.Get(manifest.train.shards[i])->ReadTokens(0);
    return shards.num_opened();
  };
  EXPECT_EQ(opened({.max_open = 3, .max_index_bytes = 1 << 20}), 3u);
  EXPECT_EQ(opened({.max_open = 2, .max_index_bytes = 1 << 20}), 12u);
  EXPECT_EQ(opened({.max_open = 3, .max_index_bytes = 1}), 12u);
  const OpenShardLimits raised = RaisedLimits();
  EXPECT_GE(raised.max_open, 64u);
  const OpenShardLimits part = RaisedLimits(/*num_datasets=*/7);
  EXPECT_EQ(part.max_open, raised.max_open / 7);
  EXPECT_EQ(part.max_index_bytes, raised.max_index_bytes / 7);
}

// Returns a value of /proc/self/status in KiB.
int64_t StatusKib(const std::string& field) {
  const std::string status = ReadText("/proc/self/status");
  const size_t at = status.find("\n" + field + ":");
  return at == std::string::npos ? -1 : std::stoll(status.substr(at + field.size() + 2));
}

// Ten trillion tokens in shards of 128 MiB, of which no file exists.
TEST(LargeDatasetTest, TenTrillionTokensOpenWithinASecondAnd50Megabytes) {
  const TempDir dir;
  {
    constexpr int64_t kShardTokens = int64_t{1} << 26;
    constexpr int64_t kShards = 10'000'000'000'000 / kShardTokens;
    Manifest manifest;
    manifest.tokenizer_kind = "bytes";
    manifest.vocab_size = 50000;
    manifest.eos_id = 1;
    for (int64_t i = 0; i < kShards; ++i) {
      const auto word = static_cast<uint64_t>(i);
      manifest.train.shards.push_back(
          {.file = {.bytes = 2 * kShardTokens + word, .hash = {1, word}},
           .num_tokens = kShardTokens,
           .num_documents = 70000 + i % 1000,
           .index_hash = {word, 2}});
      manifest.train.info.num_tokens += kShardTokens;
      manifest.train.info.num_documents += manifest.train.shards.back().num_documents;
    }
    WriteText(dir / kManifestName, FrameManifest(manifest));
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const int64_t before_kib = StatusKib("VmRSS");
  const Stopwatch stopwatch;
  const Dataset dataset = Dataset::Open(dir.path());
  EXPECT_LT(stopwatch.Seconds(), 1.0);
  EXPECT_LT(StatusKib("VmHWM") - before_kib, 50 * 1000);
  EXPECT_GT(dataset.info().train.num_tokens, 9'990'000'000'000);
  std::vector<int32_t> ids(8);
  EXPECT_HL_ERROR(dataset.Read(Split::kTrain, 7'000'000'000'000, ids), ExitCode::kData,
                  "the token shard", "train-104308.h5", "is missing");
}

}  // namespace
}  // namespace halflife::data
