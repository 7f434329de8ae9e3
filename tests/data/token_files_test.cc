// Token files of other trainers, written byte by byte as those trainers write them.
#include "data/prepare/token_files.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/concat.h"
#include "data/prepare/publish_dataset.h"
#include "data/shard_layout.h"
#include "data/small_bpe.h"
#include "data/small_datasets.h"
#include "data/token_source.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

// Returns the bytes that this process has read from files so far.
uint64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  EXPECT_TRUE(io >> name >> bytes && name == "rchar:");
  return bytes;
}

template <typename T>
void Put(std::ofstream& out, T value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
void PutIds(std::ofstream& out, const Ids& ids) {
  for (const int32_t id : ids) Put(out, static_cast<T>(id));
}

class TokenFilesTest : public testing::Test {
 protected:
  PrepareConfig Config(const std::string& input, const std::string& out) const {
    PrepareConfig config;
    config.input = {
        .paths = {(dir_ / input).string()}, .tokenizer = "bytes", .validation_fraction = 0};
    config.output = {.out = dir_ / out, .threads = 1};
    return config;
  }
  void WriteNanoGpt(const std::string& name, const Ids& ids) const {
    std::ofstream out(dir_ / name, std::ios::binary);
    PutIds<uint16_t>(out, ids);
  }
  // Documents are lists of sequences.
  template <typename T>
  void WriteMegatron(const std::string& name, int code,
                     const std::vector<std::vector<Ids>>& documents) const {
    std::ofstream bin(dir_ / (name + ".bin"), std::ios::binary);
    std::ofstream idx(dir_ / (name + ".idx"), std::ios::binary);
    std::vector<Ids> sequences;
    std::vector<int64_t> ends = {0};
    for (const auto& document : documents) {
      sequences.insert(sequences.end(), document.begin(), document.end());
      ends.push_back(static_cast<int64_t>(sequences.size()));
    }
    idx.write("MMIDIDX\0\0", 9);
    Put<uint64_t>(idx, 1);
    Put<uint8_t>(idx, static_cast<uint8_t>(code));
    Put<uint64_t>(idx, sequences.size());
    Put<uint64_t>(idx, ends.size());
    for (const Ids& ids : sequences) Put<int32_t>(idx, static_cast<int32_t>(ids.size()));
    int64_t offset = 0;
    for (const Ids& ids : sequences) {
      Put<int64_t>(idx, offset);
      offset += static_cast<int64_t>(ids.size() * sizeof(T));
      PutIds<T>(bin, ids);
    }
    for (const int64_t end : ends) Put<int64_t>(idx, end);
  }
  Ids Prepared(const std::string& input, const std::string& out) const {
    PrepareTokenFiles(Config(input, out));
    return test::ReadAll(Dataset::Open(dir_ / out), Split::kTrain);
  }

  halflife::test::TempDir dir_;
};

// Ids of "bytes": eos is 1, a byte b is b + 3.
const Ids kText = {100, 101, 102, 1, 110, 111, 1, 120, 1};

TEST_F(TokenFilesTest, EveryFormatGivesTheSameTokens) {
  WriteNanoGpt("nano.bin", kText);
  EXPECT_EQ(Prepared("nano.bin", "nano"), kText);

  // llm.c writes eos before each document.
  std::ofstream llmc(dir_ / "llmc.bin", std::ios::binary);
  for (int i = 0; i < 256; ++i) Put<int32_t>(llmc, i == 0 ? 20240520 : i == 1 ? 1 : i == 2 ? 9 : 0);
  PutIds<uint16_t>(llmc, {1, 100, 101, 102, 1, 110, 111, 1, 120});
  llmc.close();
  EXPECT_EQ(Prepared("llmc.bin", "llmc"), kText);

  // With and without an eos at the end, in one or several sequences, and an empty document.
  WriteMegatron<int32_t>("mega", 4, {{{100, 101, 102, 1}}, {{110}, {111}}, {{1}}, {{120, 1}}});
  EXPECT_EQ(Prepared("mega.bin", "mega"), kText);
  WriteMegatron<uint16_t>("mega16", 8, {{{100, 101, 102}}, {{110, 111}}, {{120}}});
  EXPECT_EQ(Prepared("mega16.bin", "mega16"), kText);
}

// The bytes of the text are known, so bits per byte are.
TEST_F(TokenFilesTest, ADatasetEqualsOneOfTheText) {
  const std::vector<std::string> documents = test::RandomDocuments(300, 4);
  test::WriteText(dir_ / "text.txt", test::JoinByBlankLines(documents));
  PrepareConfig of_text = test::ByteConfig(dir_ / "text.txt", dir_ / "text");
  Prepare(of_text);
  const Dataset text = Dataset::Open(dir_ / "text");
  WriteNanoGpt("train.bin", test::ReadAll(text, Split::kTrain));
  WriteNanoGpt("val.bin", kText);
  PrepareConfig config = Config("train.bin", "tokens");
  config.input.validation_paths = {(dir_ / "val.bin").string()};
  const PrepareSummary summary = PrepareTokenFiles(config);
  const Dataset tokens = Dataset::Open(dir_ / "tokens");
  EXPECT_EQ(test::ReadAll(tokens, Split::kTrain), test::ReadAll(text, Split::kTrain));
  EXPECT_EQ(test::ReadAll(tokens, Split::kValidation), kText);
  EXPECT_EQ(summary.train.num_bytes, text.split(Split::kTrain).num_bytes);
  EXPECT_EQ(summary.train.num_documents, text.split(Split::kTrain).num_documents);
  EXPECT_EQ(summary.validation.num_bytes, 6);
  EXPECT_EQ(tokens.DocumentStarts(Split::kTrain, 0, 5000),
            text.DocumentStarts(Split::kTrain, 0, 5000));
}

// The ids decide, whatever the tokenizer's files say.
TEST_F(TokenFilesTest, TextsBeginWithBosIfAllDocumentsDo) {
  for (const auto& [name, bytes] : test::BpeFiles(test::SmallBpeWithBosJson()))
    test::WriteText(dir_ / "hf" / name, bytes);
  using test::kBegin, test::kEnd, test::kHello;
  WriteNanoGpt("all.bin", {kBegin, kHello, kEnd, kBegin, 'a', kEnd});
  WriteNanoGpt("some.bin", {kBegin, kHello, kEnd, 'a', kEnd});
  WriteNanoGpt("none.bin", {kHello, kEnd, 'a', kEnd});
  for (const bool in_place : {false, true})
    for (const std::string name : {"all", "some", "none"}) {
      PrepareConfig config = Config(name + ".bin", Concat(name, in_place));
      config.input.tokenizer = dir_ / "hf";
      config.in_place = in_place;
      PrepareTokenFiles(config);
      const auto tokenizer = Dataset::Open(config.output.out).LoadTokenizer();
      EXPECT_EQ(tokenizer->begins_with_bos(), name == "all") << name << " " << in_place;
    }
}

// llm.c writes only bos between the documents of Llama 3.
TEST_F(TokenFilesTest, BosSeparatesDocumentsIfThereIsNoEos) {
  for (const auto& [name, bytes] : test::BpeFiles(test::SmallBpeWithBosJson()))
    test::WriteText(dir_ / "hf" / name, bytes);
  using test::kBegin, test::kEnd, test::kHello;
  const auto prepare = [&](const std::string& name, bool in_place) {
    PrepareConfig config = Config(name + ".bin", Concat(name, in_place));
    config.input.tokenizer = dir_ / "hf";
    config.in_place = in_place;
    testing::internal::CaptureStderr();
    PrepareTokenFiles(config);
    return testing::internal::GetCapturedStderr();
  };
  const auto documents = [&](const std::string& name) {
    return Dataset::Open(dir_ / name).split(Split::kTrain).num_documents;
  };
  const auto warns = [](const std::string& log, const std::string& name) {
    return log.find(Concat("1 of 1 token files have no eos (id ", kEnd, "), starting with ")) !=
               std::string::npos &&
           log.find(name + ".bin. Each is one document") != std::string::npos;
  };
  WriteNanoGpt("bos.bin", {kBegin, kHello, 'a', kBegin, 'b', kBegin, kHello});
  EXPECT_EQ(prepare("bos", false), "");
  const Ids cut = {kBegin, kHello, 'a', kEnd, kBegin, 'b', kEnd, kBegin, kHello, kEnd};
  EXPECT_EQ(test::ReadAll(Dataset::Open(dir_ / "bos0"), Split::kTrain), cut);
  EXPECT_EQ(documents("bos0"), 3);
  EXPECT_TRUE(Dataset::Open(dir_ / "bos0").LoadTokenizer()->begins_with_bos());
  const std::string linked = prepare("bos", true);
  EXPECT_TRUE(warns(linked, "bos")) << linked;
  EXPECT_NE(linked.find("Without --in-place, bos separates the documents"), std::string::npos);
  EXPECT_EQ(documents("bos1"), 1);

  // A bos within a document of a file with eos is a token like others.
  WriteNanoGpt("both.bin", {kBegin, 'a', kBegin, 'b', kEnd});
  EXPECT_EQ(prepare("both", false), "");
  EXPECT_EQ(documents("both0"), 1);

  WriteNanoGpt("neither.bin", {kHello, 'a', kBegin, 'b'});
  for (const bool in_place : {false, true}) {
    const std::string log = prepare("neither", in_place);
    EXPECT_TRUE(warns(log, "neither")) << log;
    EXPECT_EQ(documents(Concat("neither", in_place)), 1);
  }

  WriteMegatron<uint16_t>("mega", 8, {{{kHello}}, {{'a', 'b'}}});
  EXPECT_EQ(prepare("mega", false), "") << "the index has the documents";
  EXPECT_EQ(documents("mega0"), 2);
}

TEST_F(TokenFilesTest, PatternsAndRepeats) {
  WriteNanoGpt("part_2.bin", {120, 1});
  WriteNanoGpt("part_1.bin", {100, 101, 102, 1, 110, 111, 1});
  EXPECT_EQ(Prepared("part_?.bin", "pattern"), kText);
  PrepareConfig config = Config("part_1.bin", "twice");
  fs::create_symlink(dir_ / "part_1.bin", dir_ / "link.bin");
  for (const char* name : {"part_1.bin", "link.bin", "part_*.bin"})
    config.input.paths.push_back((dir_ / name).string());
  EXPECT_EQ(PrepareTokenFiles(config).num_files, 2);
  EXPECT_EQ(test::ReadAll(Dataset::Open(dir_ / "twice"), Split::kTrain), kText);
  config.output.out = dir_ / "linked";
  config.in_place = true;
  EXPECT_EQ(PrepareTokenFiles(config).train.num_tokens, std::ssize(kText));
  config.input.validation_paths = {(dir_ / "none_*.bin").string()};
  EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kData, "no file matches --validation-input ",
                  "none_*.bin. Give a token file (.bin) or a pattern");
}

// A split by content does not depend on the pieces in which a file is read.
TEST_F(TokenFilesTest, ContentChoosesTheSplit) {
  Ids ids;
  for (int i = 0; i < 400; ++i)
    for (const int32_t id : {50 + i % 200, 60 + i / 200, 1}) ids.push_back(id);
  WriteNanoGpt("many.bin", ids);
  PrepareConfig config = Config("many.bin", "many");
  config.input.validation_fraction = 0.25;
  const PrepareSummary summary = PrepareTokenFiles(config);
  EXPECT_EQ(summary.train.num_documents + summary.validation.num_documents, 400);
  EXPECT_NEAR(static_cast<double>(summary.validation.num_documents), 100, 45);
}

// The files are linked: tokens, counts and batches are those of a copy, and a change is noticed.
TEST_F(TokenFilesTest, FilesAreReadInPlace) {
  const std::vector<std::string> documents = test::RandomDocuments(900, 5);
  test::WriteText(dir_ / "text.txt", test::JoinByBlankLines(documents));
  Prepare(test::ByteConfig(dir_ / "text.txt", dir_ / "text"));
  const Ids ids = test::ReadAll(Dataset::Open(dir_ / "text"), Split::kTrain);
  ASSERT_GT(std::ssize(ids), kBlockTokens);
  WriteNanoGpt("train.bin", ids);
  std::ofstream llmc(dir_ / "val.bin", std::ios::binary);
  for (int i = 0; i < 256; ++i) Put<int32_t>(llmc, i == 0 ? 20240520 : i == 1 ? 1 : i == 2 ? 9 : 0);
  PutIds<uint16_t>(llmc, {100, 101, 102, 1, 110, 111, 1, 120, 1});
  llmc.close();
  PrepareConfig config = Config("train.bin", "copied");
  config.input.validation_paths = {(dir_ / "val.bin").string()};
  PrepareTokenFiles(config);
  config.output.out = dir_ / "linked";
  config.in_place = true;
  PrepareTokenFiles(config);
  const Dataset copied = Dataset::Open(dir_ / "copied"), linked = Dataset::Open(dir_ / "linked");
  linked.Verify();
  for (const Split split : {Split::kTrain, Split::kValidation}) {
    EXPECT_EQ(test::ReadAll(linked, split), test::ReadAll(copied, split));
    EXPECT_EQ(linked.split(split).num_documents, copied.split(split).num_documents);
    EXPECT_EQ(linked.split(split).num_bytes, copied.split(split).num_bytes);
  }
  const auto batch = [](const Dataset& dataset) {
    return ReadWindows(dataset, Split::kTrain, /*seq_len=*/64, /*first=*/500, /*count=*/4);
  };
  EXPECT_EQ(batch(linked).targets, batch(copied).targets);
  EXPECT_EQ(batch(linked).cu_seqlens, batch(copied).cu_seqlens);
  EXPECT_TRUE(fs::is_symlink(dir_ / "linked" / "train-00000.h5"));

  config.output.out = dir_ / "again";
  PrepareTokenFiles(config);
  EXPECT_EQ(Dataset::Open(dir_ / "again").info().hash, linked.info().hash);

  // A file of more ids than a shard may have.
  config.output.out = dir_ / "shards";
  config.max_linked_tokens = kBlockTokens;
  PrepareTokenFiles(config);
  const Dataset shards = Dataset::Open(dir_ / "shards");
  const uint64_t read_before = BytesRead();
  shards.Verify();
  const uint64_t in_shards = BytesRead() - read_before;
  linked.Verify();
  const uint64_t in_one = BytesRead() - read_before - in_shards;
  EXPECT_LT(in_shards, in_one + fs::file_size(dir_ / "train.bin"))
      << "the file is hashed once, not for each shard";
  EXPECT_EQ(shards.Shards(Split::kTrain).size(),
            static_cast<size_t>(NumBlocks(std::ssize(ids), kBlockTokens)));
  EXPECT_EQ(test::ReadAll(shards, Split::kTrain), ids);
  EXPECT_EQ(shards.split(Split::kTrain).num_documents, copied.split(Split::kTrain).num_documents);

  std::fstream change(dir_ / "train.bin", std::ios::binary | std::ios::in | std::ios::out);
  change.seekp(2 * kBlockTokens);
  change.write("\7\0", 2);
  change.close();
  EXPECT_HL_ERROR(test::ReadAll(Dataset::Open(dir_ / "linked"), Split::kTrain), ExitCode::kData,
                  "tokens 32768 to ", "do not have the hash of the manifest");
}

// A linked file may be on a read-only file system, where fsync fails as it does for /dev/null.
TEST_F(TokenFilesTest, LinkedFilesAreNotSynced) {
  OutputFolder folder(dir_ / "published");
  fs::create_symlink("/dev/null", folder.path() / "train-00000.h5");
  folder.Publish();
  EXPECT_TRUE(fs::is_symlink(dir_ / "published" / "train-00000.h5"));
}

TEST_F(TokenFilesTest, FilesThatCannotBeReadInPlace) {
  WriteMegatron<uint16_t>("mega", 8, {{{100, 101}}, {{110}}});
  PrepareConfig config = Config("mega.bin", "a");
  config.in_place = true;
  EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kUsage,
                  "mega.bin (megatron, ids of 2 bytes)", "Leave out --in-place");
  config.resumable = true;
  EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kUsage, "--resumable is for text");
  config.resumable = false;
  config.output.shard_tokens = kBlockTokens;
  EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kUsage, "leave --shard-tokens out");
  config.output.shard_tokens = PrepareOutput().shard_tokens;
  config.input.validation_fraction = 0.1;
  EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kUsage, "--in-place cannot cut a file",
                  "--validation-input");
  config.input.validation_fraction = 0;
  WriteNanoGpt("empty.bin", {});
  config.input.paths = {(dir_ / "empty.bin").string()};
  EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kData, "empty.bin has no ids. Name a file");
  test::WriteText(dir_ / "text.txt", "abc");
  config.input.paths = {(dir_ / "text.txt").string()};
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kUsage, "--in-place is for token files");
}

TEST_F(TokenFilesTest, OptionsOfTextAreRefused) {
  WriteNanoGpt("train.bin", kText);
  const PrepareConfig usual = Config("train.bin", "a");
  const auto refused = [&](auto change) {
    PrepareConfig config = usual;
    change(config.input);
    EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kUsage, "are for text",
                    "leave the options out");
  };
  refused([](PrepareInput& input) { input.field = "body"; });
  refused([](PrepareInput& input) { input.replace_invalid_utf8 = true; });
  refused([](PrepareInput& input) { input.max_document_bytes = 1000; });
}

TEST_F(TokenFilesTest, WhatIsBothTrainedOnAndHeldOut) {
  WriteNanoGpt("train.bin", kText);
  PrepareConfig config = Config("train.bin", "same");
  fs::create_symlink(dir_ / "train.bin", dir_ / "link.bin");
  config.input.validation_paths = {(dir_ / "link.bin").string()};
  for (const bool in_place : {false, true}) {
    config.in_place = in_place;
    EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kUsage,
                    "link.bin is both in --input and in --validation-input",
                    "Remove it from --input.");
  }
  config.in_place = false;
  WriteNanoGpt("val.bin", {110, 111, 1, 110, 111, 1, 130, 1});
  config.input.validation_paths = {(dir_ / "val.bin").string()};
  EXPECT_EQ(PrepareTokenFiles(config).num_validation_in_train, 2);
}

TEST_F(TokenFilesTest, WrongFilesAreNamed) {
  WriteNanoGpt("big.bin", {100, 259, 1});
  EXPECT_HL_ERROR(Prepared("big.bin", "a"), ExitCode::kData,
                  "big.bin (nanogpt): the id 259 is not "
                  "below 259, the vocabulary",
                  "Use --tokenizer with the tokenizer that made");
  test::WriteText(dir_ / "odd.bin", "abc");
  EXPECT_HL_ERROR(Prepared("odd.bin", "b"), ExitCode::kData, "odd.bin has 3 bytes, which are no ",
                  "16 bits");
  EXPECT_HL_ERROR(Prepared("none.bin", "c"), ExitCode::kData, "no file matches --input ",
                  "none.bin. Give a token file (.bin)");
  WriteNanoGpt("one.bin", {100, 101});
  test::WriteText(dir_ / "one.idx", "not an index, but long enough for a header");
  EXPECT_HL_ERROR(Prepared("one.bin", "d"), ExitCode::kData, "one.idx is not an index of Megatron");
  WriteMegatron<int32_t>("cut", 4, {{{100, 101, 102}}});
  fs::resize_file(dir_ / "cut.bin", 8);
  EXPECT_HL_ERROR(Prepared("cut.bin", "e"), ExitCode::kData, "cut.bin has 8 bytes, and bytes 0 to ",
                  "12", "cut off");
  WriteMegatron<int32_t>("type", 7, {{{100}}});
  EXPECT_HL_ERROR(Prepared("type.bin", "f"), ExitCode::kData, "type.idx: the type of ids 7");
  WriteNanoGpt("whole.bin", {100, 101, 102});
  PrepareConfig config = Config("whole.bin", "g");
  config.input.validation_fraction = 0.5;
  EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kData, "of 1 documents, ",
                  "Use --validation-input");
  config.input.tokenizer = "";
  EXPECT_HL_ERROR(PrepareTokenFiles(config), ExitCode::kUsage, "name the tokenizer that made");
  EXPECT_TRUE(AreTokenFiles({"a.bin", "b.bin"}));
  EXPECT_FALSE(AreTokenFiles({"a.bin", "b.txt"}));
}

}  // namespace
}  // namespace halflife::data
