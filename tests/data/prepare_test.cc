// `prepare` for text: documents come back unchanged, and the result does not depend on threads,
// chunks, compression or file order.
#include "data/prepare/prepare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/concat.h"
#include "data/manifest.h"
#include "data/sentencepiece_bridge.h"
#include "data/small_bpe.h"
#include "data/small_datasets.h"
#include "interop/small_sentencepiece.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

using halflife::test::TempDir;
using test::BpeFiles;
using test::ByteConfig;
using test::FolderFingerprint;
using test::JoinByBlankLines;
using test::kEnd;
using test::Names;
using test::RandomDocuments;
using test::ReadDocuments;
using test::SmallBpeJson;
using test::WriteText;

std::string JsonLines(const std::vector<std::string>& documents) {
  std::string lines;
  for (const std::string& document : documents) {
    lines += "{\"text\": \"";
    for (const char c : document) {
      lines += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
    }
    lines += "\"}\n";
  }
  return lines;
}

TEST(PrepareTest, DocumentsComeBackInOrder) {
  const TempDir dir;
  const auto documents = RandomDocuments(400, 1);
  WriteText(dir / "a.txt", JoinByBlankLines(documents));
  const PrepareSummary summary = Prepare(ByteConfig(dir / "a.txt", dir / "out"));
  const Dataset dataset = Dataset::Open(dir / "out");
  EXPECT_EQ(ReadDocuments(dataset, Split::kTrain), documents);
  EXPECT_EQ(summary.train.num_documents, 400);
  EXPECT_EQ(summary.hash, dataset.info().hash);
  EXPECT_EQ(dataset.info().train.num_tokens,
            dataset.info().train.num_bytes + dataset.info().train.num_documents);
  EXPECT_EQ(dataset.info().validation.num_shards, 0);
  dataset.Verify();
}

TEST(PrepareTest, CountsNamesOfSpecialTokensInText) {
  const TempDir dir;
  for (const auto& [name, bytes] : BpeFiles(SmallBpeJson())) WriteText(dir / name, bytes);
  WriteText(dir / "a.txt", "one<|end|>two\n\nthree<|end|>\n\nfour<tool>\n");
  const PrepareSummary summary = Prepare({.input = {.paths = {(dir / "a.txt").string()},
                                                    .tokenizer = dir.path().string(),
                                                    .validation_fraction = 0},
                                          .output = {.out = dir / "out"}});
  EXPECT_EQ(summary.special_names, (NameCounts{{"<|end|>", 2}}));
  const Dataset dataset = Dataset::Open(dir / "out");
  std::vector<int32_t> ids(static_cast<size_t>(dataset.info().train.num_tokens));
  dataset.Read(Split::kTrain, 0, ids);
  EXPECT_EQ(std::ranges::count(ids, kEnd), 1) << "at the end of the document";
}

TEST(PrepareTest, CompressionAndFormatChangeNothing) {
  const TempDir dir;
  const auto documents = RandomDocuments(300, 2);
  const std::string text = JoinByBlankLines(documents), records = JsonLines(documents);
  const std::pair<const char*, std::string> files[] = {{"a.txt", text},
                                                       {"a.txt.gz", test::Gzip(text)},
                                                       {"a.txt.zst", test::Zstd(text)},
                                                       {"a.jsonl", records},
                                                       {"a.jsonl.gz", test::Gzip(records)},
                                                       {"a.jsonl.zst", test::Zstd(records)}};
  std::string expected;
  for (const auto& [name, bytes] : files) {
    WriteText(dir / name, bytes);
    PrepareConfig config = ByteConfig(dir / name, dir / (std::string(name) + ".out"));
    config.input.validation_fraction = 0.2;
    if (config.input.paths[0].find(".jsonl") != std::string::npos) config.documents.reset();
    Prepare(config);
    Dataset::Open(config.output.out).Verify();
    // The manifest contains a hash of every byte. Those of text and records differ only in the
    // names of their documents.
    Manifest manifest = ReadManifest(config.output.out / kManifestName);
    EXPECT_EQ(manifest.documents, config.documents ? "blank_lines" : "record");
    manifest.documents = "";
    const std::string content = FrameManifest(manifest);
    if (expected.empty()) expected = content;
    EXPECT_EQ(content, expected) << name;
  }
}

TEST(PrepareTest, ThreadsAndChunksChangeNoBit) {
  const TempDir dir;
  for (int file = 0; file < 5; ++file) {
    WriteText(dir / ("in/" + std::to_string(file) + ".txt"),
              JoinByBlankLines(RandomDocuments(300, static_cast<uint64_t>(file))));
  }
  std::string long_document;
  while (long_document.size() < 300000) long_document += "one very long document. ";
  WriteText(dir / "in/long.txt", long_document);
  std::string expected;
  for (const int threads : {1, 2, 4}) {
    for (const int64_t chunk : {3000, 100000}) {
      PrepareConfig config = ByteConfig(
          dir / "in", dir / ("out" + std::to_string(threads) + "." + std::to_string(chunk)));
      config.output.threads = threads;
      config.chunk_bytes = chunk;
      // Several shards, with documents across their boundaries.
      config.output.shard_tokens = 40000;
      config.input.validation_fraction = 0.1;
      Prepare(config);
      const std::string fingerprint = FolderFingerprint(config.output.out);
      if (expected.empty()) expected = fingerprint;
      EXPECT_EQ(fingerprint, expected) << threads << " threads, chunks of " << chunk;
    }
  }
}

TEST(PrepareTest, ATextFileIsOneDocumentWhoseEndValidates) {
  const TempDir dir;
  const std::string text = JoinByBlankLines(RandomDocuments(400, 1));
  const auto size = static_cast<double>(text.size());
  WriteText(dir / "a.txt", text);
  PrepareConfig config = ByteConfig(dir / "a.txt", dir / "out");
  config.documents.reset();
  config.input.validation_fraction.reset();
  const PrepareSummary summary = Prepare(config);
  EXPECT_EQ(summary.validation_tail, 0.05);
  EXPECT_EQ(summary.first_file, "a.txt");
  const Dataset dataset = Dataset::Open(dir / "out");
  const auto train = ReadDocuments(dataset, Split::kTrain),
             validation = ReadDocuments(dataset, Split::kValidation);
  ASSERT_EQ(train.size(), 1u);
  ASSERT_EQ(validation.size(), 1u);
  EXPECT_EQ(train[0] + validation[0], text);
  EXPECT_NEAR(static_cast<double>(validation[0].size()), 0.05 * size, 4);
  const Manifest manifest = ReadManifest(dir / "out" / kManifestName);
  EXPECT_EQ(manifest.documents, "file");
  EXPECT_EQ(manifest.validation_tail, 0.05);
  EXPECT_EQ(manifest.validation_fraction, 0);

  WriteText(dir / "b.txt", text + "more");
  config.input.paths.push_back((dir / "b.txt").string());
  config.output.out = dir / "both";
  EXPECT_EQ(Prepare(config).validation_tail, 0.05) << "two documents are too few to choose from";
  config.input.split_seed = 1;
  config.input.paths.pop_back();
  config.output.out = dir / "seed";
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kUsage, "is one document. Use --validation-tail 0.05");

  config.output.out = dir / "all";
  config.input.validation_fraction = 0;
  EXPECT_EQ(Prepare(config).validation.num_tokens, 0) << "0 is no validation";
}

TEST(PrepareTest, TheTailIsTheSameForThreadsAndChunks) {
  const TempDir dir;
  for (const uint64_t file : {0, 1, 2})
    WriteText(dir / Concat("in/", file, ".txt"), JoinByBlankLines(RandomDocuments(1000, file)));
  for (const DocumentMode mode :
       {DocumentMode::kFile, DocumentMode::kLine, DocumentMode::kBlankLines}) {
    std::string expected;
    for (const int threads : {1, 3}) {
      for (const int64_t chunk : {3000, 70000}) {
        SCOPED_TRACE(Concat(Name(mode), ", ", threads, " threads, chunks of ", chunk));
        PrepareConfig config = ByteConfig(dir / "in", dir / "out");
        config.documents = mode;
        config.output.threads = threads;
        config.chunk_bytes = chunk;
        config.input.validation_fraction.reset();
        config.input.validation_tail = 0.1;
        const PrepareSummary summary = Prepare(config);
        EXPECT_NEAR(static_cast<double>(summary.validation.num_bytes) /
                        static_cast<double>(summary.train.num_bytes),
                    0.1 / 0.9, 0.01);
        const std::string fingerprint = FolderFingerprint(config.output.out);
        if (expected.empty()) expected = fingerprint;
        EXPECT_EQ(fingerprint, expected);
        std::filesystem::remove_all(config.output.out);
      }
    }
  }
}

TEST(PrepareTest, TheSplitIgnoresOrderAndNames) {
  const TempDir dir;
  auto documents = RandomDocuments(300, 5);
  WriteText(dir / "a.txt", JoinByBlankLines(documents));
  std::reverse(documents.begin(), documents.end());
  WriteText(dir / "z.txt", JoinByBlankLines(documents));
  const auto validation = [&](const char* name, uint64_t seed) {
    PrepareConfig config = ByteConfig(dir / name, dir / (name + std::to_string(seed)));
    config.input.validation_fraction = 0.3;
    config.input.split_seed = seed;
    Prepare(config);
    auto found = ReadDocuments(Dataset::Open(config.output.out), Split::kValidation);
    std::sort(found.begin(), found.end());
    return found;
  };
  EXPECT_EQ(validation("a.txt", 0), validation("z.txt", 0));
  EXPECT_NE(validation("a.txt", 1), validation("a.txt", 2));
}

// The files of a split are contiguous ranges of its tokens, for any number of threads and chunk
// size. A split of one file has no names.
TEST(PrepareTest, TheManifestHasTheSourcesOfASplit) {
  const TempDir dir;
  const std::vector<std::string> names = {"in/a.txt", "in/more/b.jsonl", "in/z.txt"};
  std::vector<std::vector<std::string>> documents;
  for (size_t file = 0; file < names.size(); ++file) {
    documents.push_back(RandomDocuments(200 + 100 * static_cast<int>(file), 10 + file));
    const bool records = names[file].ends_with(".jsonl");
    WriteText(dir / names[file],
              records ? JsonLines(documents.back()) : JoinByBlankLines(documents.back()));
  }
  WriteText(dir / "in/empty.txt", "");
  for (const int64_t chunk : {1000, 100000}) {
    PrepareConfig config = ByteConfig(dir / "in", dir / Concat("out", chunk));
    config.input.validation_fraction = 0.3;
    config.output.threads = 3;
    config.chunk_bytes = chunk;
    Prepare(config);
    const Dataset dataset = Dataset::Open(config.output.out);
    std::vector<int64_t> num_documents(names.size());
    for (const Split split : {Split::kTrain, Split::kValidation}) {
      const std::vector<std::string> found = ReadDocuments(dataset, split);
      const std::vector<Source>& sources = dataset.split(split).sources;
      ASSERT_EQ(sources.size(), names.size());
      int64_t token = 0;
      size_t document = 0;
      for (size_t file = 0; file < names.size(); ++file) {
        EXPECT_EQ("in/" + sources[file].name, names[file]);
        EXPECT_EQ(
            std::ssize(dataset.DocumentStarts(split, token, token + sources[file].num_tokens)),
            sources[file].num_documents);
        token += sources[file].num_tokens;
        num_documents[file] += sources[file].num_documents;
        for (int64_t i = 0; i < sources[file].num_documents; ++i)
          EXPECT_EQ(std::ranges::count(documents[file], found[document++]), 1) << names[file];
      }
      EXPECT_EQ(token, dataset.split(split).num_tokens);
      EXPECT_EQ(document, found.size());
    }
    EXPECT_EQ(num_documents, (std::vector<int64_t>{200, 300, 400}));
  }
  EXPECT_EQ(test::ReadText(dir / "out1000" / kManifestTextName),
            test::ReadText(dir / "out100000" / kManifestTextName));

  std::filesystem::rename(dir / "in/a.txt", dir / "renamed.txt");
  WriteText(dir / "a.txt", JoinByBlankLines(documents[0]));
  const PrepareSummary one = Prepare(ByteConfig(dir / "a.txt", dir / "one")),
                       renamed = Prepare(ByteConfig(dir / "renamed.txt", dir / "two"));
  EXPECT_TRUE(one.train.sources.empty());
  EXPECT_EQ(one.hash, renamed.hash);
}

// File names may be any bytes. The manifest's names are UTF-8 and unique.
TEST(PrepareTest, SourcesHaveReadableNames) {
  const TempDir dir;
  PrepareConfig config = ByteConfig(dir / "1/text.txt", dir / "out");
  config.input.paths.clear();
  for (const char* name : {"1/text.txt", "2/text.txt", "3/caf\xE9.txt"}) {
    WriteText(dir / name, "some text");
    config.input.paths.push_back((dir / name).string());
  }
  Prepare(config);
  std::vector<std::string> names;
  const Dataset dataset = Dataset::Open(dir / "out");
  for (const Source& source : dataset.info().train.sources) names.push_back(source.name);
  EXPECT_EQ(names, (std::vector<std::string>{"text.txt", "text.txt (2)", "caf\xEF\xBF\xBD.txt"}));
}

TEST(PrepareTest, ManySourcesAreNotRecorded) {
  const TempDir dir;
  for (int file = 0; file < 101; ++file) WriteText(dir / Concat("in/", file, ".txt"), "text");
  EXPECT_TRUE(Prepare(ByteConfig(dir / "in", dir / "many")).train.sources.empty());
  std::filesystem::remove(dir / "in/7.txt");
  EXPECT_EQ(Prepare(ByteConfig(dir / "in", dir / "most")).train.sources.size(), 100u);
}

TEST(PrepareTest, AValidationInputIsTheValidationSplit) {
  const TempDir dir;
  const auto train = RandomDocuments(300, 1), published = RandomDocuments(40, 2);
  WriteText(dir / "train.txt", JoinByBlankLines(train));
  WriteText(dir / "valid.txt.gz", test::Gzip(JoinByBlankLines(published)));
  std::string expected;
  for (const int threads : {1, 3}) {
    PrepareConfig config = ByteConfig(dir / "train.txt", dir / ("out" + std::to_string(threads)));
    config.input.validation_paths = {(dir / "valid.txt.gz").string()};
    config.input.validation_fraction = 0.3;  // Empty.
    config.output.threads = threads;
    config.chunk_bytes = 1000;
    PrepareProgress last;
    config.output.on_progress = [&](const PrepareProgress& progress) {
      EXPECT_GE(progress.disk_bytes, last.disk_bytes);
      last = progress;
    };
    const PrepareSummary summary = Prepare(config);
    EXPECT_EQ(last.disk_bytes, last.total_disk_bytes);
    EXPECT_EQ(summary.num_files, 2);
    EXPECT_EQ(summary.num_validation_in_train, 0);
    const Dataset dataset = Dataset::Open(config.output.out);
    EXPECT_EQ(ReadDocuments(dataset, Split::kTrain), train);
    EXPECT_EQ(ReadDocuments(dataset, Split::kValidation), published);
    dataset.Verify();
    const Manifest manifest = ReadManifest(config.output.out / kManifestName);
    EXPECT_TRUE(manifest.validation_input);
    EXPECT_EQ(manifest.validation_fraction, 0);
    if (expected.empty()) expected = FolderFingerprint(config.output.out);
    EXPECT_EQ(FolderFingerprint(config.output.out), expected) << threads << " threads";
  }
}

TEST(PrepareTest, DocumentsOfTheValidationInputThatAreTrainedOnAreCounted) {
  const TempDir dir;
  auto train = RandomDocuments(300, 1), published = RandomDocuments(40, 2);
  published.push_back(train[7]);
  published.push_back(train[9]);
  published.push_back(train[9]);
  train.push_back(train[9]);
  WriteText(dir / "train.txt", JoinByBlankLines(train));
  WriteText(dir / "valid.txt", JoinByBlankLines(published));
  PrepareConfig config = ByteConfig(dir / "train.txt", dir / "out");
  config.input.validation_paths = {(dir / "valid.txt").string()};
  EXPECT_EQ(Prepare(config).num_validation_in_train, 3);
}

// Datasets without this feature do not have the field, so their bytes and hash do not change.
TEST(PrepareTest, WithoutAValidationInputTheManifestHasNoSuchField) {
  const TempDir dir;
  WriteText(dir / "a.txt", JoinByBlankLines(RandomDocuments(30, 1)));
  Prepare(ByteConfig(dir / "a.txt", dir / "out"));
  EXPECT_FALSE(ReadManifest(dir / "out" / kManifestName).validation_input);
  const std::string text = test::ReadText(dir / "out" / kManifestTextName);
  EXPECT_EQ(text.find("validation_input"), std::string::npos) << text;
  EXPECT_EQ(text.find("validation_tail"), std::string::npos) << text;
}

TEST(PrepareTest, TrainsASentencePieceTokenizer) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const TempDir dir;
  const auto documents = RandomDocuments(400, 6);
  WriteText(dir / "a.txt", JoinByBlankLines(documents));
  std::string expected;
  for (const int threads : {1, 3}) {
    PrepareConfig config = ByteConfig(dir / "a.txt", dir / ("out" + std::to_string(threads)));
    config.input.tokenizer.clear();
    config.train_tokenizer = true;
    config.vocab_size = 340;
    config.output.threads = threads;
    Prepare(config);
    const Dataset dataset = Dataset::Open(config.output.out);
    EXPECT_EQ(dataset.info().vocab_size, 340);
    EXPECT_EQ(ReadDocuments(dataset, Split::kTrain), documents);
    if (expected.empty()) expected = FolderFingerprint(config.output.out);
    EXPECT_EQ(FolderFingerprint(config.output.out), expected);
  }
  // The model of that dataset is used for another one.
  PrepareConfig config = ByteConfig(dir / "a.txt", dir / "again");
  config.input.tokenizer = (dir / "out1/tokenizer/sentencepiece.model").string();
  Prepare(config);
  EXPECT_EQ(FolderFingerprint(dir / "again"), expected);
}

TEST(PrepareTest, CarriesAByteLevelBpeTokenizer) {
  const TempDir dir;
  const auto documents = RandomDocuments(400, 6);
  WriteText(dir / "a.txt", JoinByBlankLines(documents));
  for (const auto& [name, bytes] : BpeFiles(SmallBpeJson())) WriteText(dir / "hf" / name, bytes);
  std::string expected;
  // From the model's folder, from its file, and from the first dataset.
  for (const char* source : {"hf", "hf/tokenizer.json", "out0/tokenizer"}) {
    PrepareConfig config = ByteConfig(dir / "a.txt", dir / (expected.empty() ? "out0" : "again"));
    config.input.tokenizer = (dir / source).string();
    config.output.threads = expected.empty() ? 1 : 3;
    Prepare(config);
    const Dataset dataset = Dataset::Open(config.output.out);
    EXPECT_EQ(dataset.info().tokenizer_kind, "bpe");
    EXPECT_EQ(dataset.info().vocab_size, 268);
    EXPECT_EQ(dataset.info().eos_id, kEnd);
    EXPECT_EQ(ReadDocuments(dataset, Split::kTrain), documents);
    if (expected.empty()) expected = FolderFingerprint(config.output.out);
    EXPECT_EQ(FolderFingerprint(config.output.out), expected) << source;
    if (config.output.out != dir / "out0") std::filesystem::remove_all(config.output.out);
  }
}

TEST(PrepareTest, ProgressReachesTheEnd) {
  const TempDir dir;
  WriteText(dir / "a.txt", JoinByBlankLines(RandomDocuments(300, 1)));
  PrepareConfig config = ByteConfig(dir / "a.txt", dir / "out");
  config.chunk_bytes = 1000;
  PrepareProgress last;
  config.output.on_progress = [&](const PrepareProgress& progress) {
    EXPECT_GE(progress.disk_bytes, last.disk_bytes);
    EXPECT_GE(progress.num_documents, last.num_documents);
    last = progress;
  };
  Prepare(config);
  EXPECT_EQ(last.disk_bytes, last.total_disk_bytes);
  EXPECT_EQ(last.num_documents, 300);
}

class PrepareErrorTest : public testing::Test {
 protected:
  // Expects that neither the output nor a temporary folder exists.
  void ExpectNothingLeft() {
    for (const std::string& name : Names(dir_.path())) {
      EXPECT_FALSE(name.starts_with("out")) << name;
    }
  }
  PrepareConfig Config() { return ByteConfig(dir_ / "a.txt", dir_ / "out"); }
  TempDir dir_;
};

TEST_F(PrepareErrorTest, EmptyInput) {
  WriteText(dir_ / "a.txt", "\n  \n\n");
  EXPECT_HL_ERROR(Prepare(Config()), ExitCode::kData, "the input contains no text", "a.txt");
  ExpectNothingLeft();
}

TEST_F(PrepareErrorTest, EmptySplits) {
  WriteText(dir_ / "a.txt", "one single document");
  PrepareConfig config = Config();
  config.input.validation_fraction = 0.0001;
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "none of the 1 documents",
                  "Raise --validation-fraction", "change --split-seed", "--documents blank_lines",
                  "use --validation-tail");
  config.input.validation_fraction = 0.9999;
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "all 1 documents", "--split-seed");
  config.documents = DocumentMode::kFile;
  config.input.validation_fraction = 0.1;
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kUsage, "choose whole documents, and ",
                  "a.txt is one document. Use --validation-tail 0.1 to validate on its end");
  config.documents = DocumentMode::kLine;
  config.input.validation_fraction.reset();
  config.input.validation_tail = 0.1;
  EXPECT_HL_ERROR(
      Prepare(config), ExitCode::kData,
      "with --validation-tail 0.1 the validation split gets no text of 1 documents. Use "
      "a larger --validation-tail, or --documents file");
  ExpectNothingLeft();
}

TEST_F(PrepareErrorTest, DocumentsOfFilesThatHoldOnlyRecords) {
  WriteText(dir_ / "a.jsonl", "{\"text\": \"a\"}\n");
  EXPECT_HL_ERROR(Prepare(ByteConfig(dir_ / "a.jsonl", dir_ / "out")), ExitCode::kUsage,
                  "--documents blank_lines is for .txt files, and the input has only records",
                  "Remove --documents");
  ExpectNothingLeft();
}

TEST_F(PrepareErrorTest, ValidationInput) {
  WriteText(dir_ / "in/a.txt", "training text");
  WriteText(dir_ / "in/b.txt", "validation text");
  WriteText(dir_ / "empty.txt", "\n\n");
  PrepareConfig config = ByteConfig(dir_ / "in", dir_ / "out");
  std::filesystem::create_symlink(dir_ / "in/b.txt", dir_ / "link.txt");
  config.input.validation_paths = {(dir_ / "link.txt").string()};
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kUsage, "link.txt is both in --input and in",
                  "Remove it from --input.");
  config.input.validation_paths = {(dir_ / "none*.txt").string()};
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "no file matches --validation-input");
  config.input.validation_paths = {(dir_ / "empty.txt").string()};
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "--validation-input contains no text",
                  "empty.txt");
  config.input.paths = {(dir_ / "empty.txt").string()};
  config.input.validation_paths = {(dir_ / "in/b.txt").string()};
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "--input contains no text", "empty.txt");
  ExpectNothingLeft();
}

TEST_F(PrepareErrorTest, TheFirstErrorInReadingOrderWins) {
  std::string text = JoinByBlankLines(RandomDocuments(200, 1));
  text += "\xFF here\n\n";
  const size_t bad = text.find('\xFF');
  text += JoinByBlankLines(RandomDocuments(200, 2)) + "\xFE later\n\n";
  WriteText(dir_ / "a.txt", text);
  for (const int threads : {1, 4}) {
    PrepareConfig config = Config();
    config.output.threads = threads;
    config.chunk_bytes = 100;
    EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "byte " + std::to_string(bad) + " ");
  }
  ExpectNothingLeft();
}

TEST_F(PrepareErrorTest, ExistingOutput) {
  WriteText(dir_ / "a.txt", "x");
  std::filesystem::create_directory(dir_ / "taken");
  PrepareConfig config = Config();
  config.output.out = dir_ / "taken/";
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kUsage, "taken", "exists already",
                  "never overwritten");
  EXPECT_EQ(Names(dir_.path()), (std::vector<std::string>{"a.txt", "taken"}));
}

TEST_F(PrepareErrorTest, NotAModel) {
  WriteText(dir_ / "a.txt", "x");
  PrepareConfig config = Config();
  config.input.tokenizer = (dir_ / "a.txt").string();
#ifndef __SANITIZE_ADDRESS__
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "a.txt: ", "not a sentencepiece model");
#endif
  config.input.tokenizer = "byte";
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "--tokenizer byte", "neither `bytes` nor");
  ExpectNothingLeft();
}

TEST_F(PrepareErrorTest, AModelWhoseEosCouldStandInText) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const std::vector<std::string> lines = RandomDocuments(300, 1);
  size_t at = 0;
  const auto next = [&]() { return at < lines.size() ? &lines[at++] : nullptr; };
  std::string error;
  WriteText(dir_ / "user.model", LoadSentencePieceBridge().train({{"vocab_size", "60"},
                                                                  {"user_defined_symbols", "</s>"},
                                                                  {"hard_vocab_limit", "false"},
                                                                  {"minloglevel", "2"}},
                                                                 next, error));
  ASSERT_EQ(error, "");
  WriteText(dir_ / "a.txt", "one </s> two");
  PrepareConfig config = Config();
  config.input.tokenizer = (dir_ / "user.model").string();
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "user.model", "no </s> control piece",
                  "--train-tokenizer");
  ExpectNothingLeft();
}

TEST_F(PrepareErrorTest, Flags) {
  WriteText(dir_ / "a.txt", "x");
  const auto expect = [&](auto change, std::initializer_list<std::string> words) {
    PrepareConfig config = Config();
    change(config);
    halflife::test::ExpectError([&] { Prepare(config); }, ExitCode::kUsage, words, __FILE__,
                                __LINE__);
  };
  expect([](PrepareConfig& c) { c.input.tokenizer = ""; },
         {"--tokenizer bytes|FILE|FOLDER", "--vocab"});
  expect([](PrepareConfig& c) { c.train_tokenizer = true; }, {"either --tokenizer"});
  expect([](PrepareConfig& c) { c.input.tokenizer = "", c.train_tokenizer = true; },
         {"needs --vocab"});
  expect([](PrepareConfig& c) { c.input.validation_fraction = 1; },
         {"--validation-fraction 1", "[0, 1)"});
  expect([](PrepareConfig& c) { c.input.validation_tail = 1; },
         {"--validation-tail 1 is not a share of a text"});
  expect([](PrepareConfig& c) { c.input.validation_tail = 0; },
         {"--validation-tail 0 is not a share of a text", "--validation-fraction 0 for no"});
  expect([](PrepareConfig& c) { c.input.validation_tail = 0.1; }, {"exclude each other"});
  expect([](PrepareConfig& c) { c.output.threads = -1; }, {"--threads -1"});
  expect([](PrepareConfig& c) { c.output.shard_tokens = 10; }, {"--shard-tokens 10", "32768"});
  expect([](PrepareConfig& c) { c.output.shard_tokens = int64_t{1} << 33; },
         {"--shard-tokens 8589934592", "4294967296"});
  expect([](PrepareConfig& c) { c.input.max_document_bytes = 0; }, {"--max-document-bytes 0"});
  ExpectNothingLeft();
}

TEST_F(PrepareErrorTest, StopsWhenAsked) {
  WriteText(dir_ / "a.txt", JoinByBlankLines(RandomDocuments(300, 1)));
  std::atomic<bool> stop{false};
  PrepareConfig config = Config();
  config.chunk_bytes = 1000;
  config.output.stop = &stop;
  config.output.on_progress = [&](const PrepareProgress&) { stop = true; };
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kInterrupted, "stopped by a signal");
  ExpectNothingLeft();
}

// The first copy of each text is kept, in order, for any threads and chunks. Validation text is
// read first, so its copies in the training text are left out.
TEST(PrepareTest, DuplicateDocumentsAreLeftOut) {
  const TempDir dir_;
  const std::vector<std::string> texts = {"one text", "two", "one text", "three", "two", "two "};
  std::string lines;
  for (const std::string& text : texts) lines += text + "\n";
  test::WriteText(dir_ / "lines.txt", lines);
  test::WriteText(dir_ / "held.txt", "three\n");
  for (const int64_t chunk : {1, 7, 1000}) {
    PrepareConfig config = test::ByteConfig(dir_ / "lines.txt", dir_ / Concat("out", chunk));
    config.documents = DocumentMode::kLine;
    config.dedup = true;
    config.chunk_bytes = chunk;
    config.output.threads = 2;
    const PrepareSummary summary = Prepare(config);
    EXPECT_EQ(summary.num_duplicates, 2);
    const Dataset dataset = Dataset::Open(config.output.out);
    EXPECT_EQ(test::ReadDocuments(dataset, Split::kTrain),
              (std::vector<std::string>{"one text", "two", "three", "two "}));
    config.input.validation_paths = {(dir_ / "held.txt").string()};
    config.output.out = dir_ / Concat("held", chunk);
    EXPECT_EQ(Prepare(config).num_duplicates, 3);
    EXPECT_EQ(test::ReadDocuments(Dataset::Open(config.output.out), Split::kTrain),
              (std::vector<std::string>{"one text", "two", "two "}));
  }
}

TEST_F(PrepareErrorTest, EveryTrainingDocumentIsADuplicate) {
  WriteText(dir_ / "a.txt", "one\n\ntwo\n\none");
  WriteText(dir_ / "held.txt", "two\n\none\n\ntwo");
  PrepareConfig config = Config();
  config.dedup = true;
  config.input.validation_paths = {(dir_ / "held.txt").string()};
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "--dedup leaves no text to train on: all 3 ",
                  "starting with ", "a.txt, are also in --validation-input", "leave out --dedup");
  WriteText(dir_ / "a.txt", "\n\n");
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "--input contains no text");
  ExpectNothingLeft();
}

}  // namespace
}  // namespace halflife::data
