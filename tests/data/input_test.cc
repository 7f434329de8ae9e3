// Finding input files, decompressing them, and splitting them into documents.
#include <gtest/gtest.h>

#include "core/concat.h"
#include "data/input_files.h"
#include "data/prepare/document_encoder.h"
#include "data/prepare/text_chunker.h"
#include "data/small_datasets.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

using halflife::test::TempDir;
using test::Gzip;
using test::WriteText;
using test::Zstd;

std::vector<std::string> FileNames(const InputFiles& found) {
  std::vector<std::string> names;
  for (const InputFile& file : found.files) names.push_back(file.path.filename().string());
  return names;
}

std::string ReadStream(const std::filesystem::path& path, size_t step) {
  const InputFiles found = FindInputFiles({path.string()});
  const auto stream = OpenByteStream(found.files.front());
  std::string text, buffer(step, '\0');
  while (const size_t got = stream->Read(buffer.data(), step)) text += buffer.substr(0, got);
  return text;
}

// Returns whole documents of a file, joined from the chunks.
std::vector<std::string> Documents(const std::filesystem::path& path, ChunkerConfig config,
                                   DocumentRules rules = {}) {
  const InputFiles found = FindInputFiles({path.string()});
  TextChunker chunker(found.files, config);
  rules.allow_pieces = config.allow_pieces;
  rules.max_document_bytes = config.max_document_bytes;
  std::vector<std::string> documents;
  bool open = false;
  while (auto chunk = chunker.Next()) {
    ForEachDocument(*std::move(chunk), rules, [&](const Document& document) {
      EXPECT_EQ(document.begins, !open);
      if (document.begins) documents.emplace_back();
      documents.back() += document.text;
      open = !document.ends;
    });
  }
  EXPECT_FALSE(open);
  return documents;
}

TEST(InputFilesTest, FoldersAreRecursiveAndSorted) {
  const TempDir dir;
  for (const char* name : {"b.txt", "a/z.jsonl", "a/c.txt.gz", "a/d.jsonl.zst", "notes.md"}) {
    WriteText(dir / name, "x");
  }
  const InputFiles found = FindInputFiles({dir.path().string()});
  EXPECT_EQ(FileNames(found),
            (std::vector<std::string>{"c.txt.gz", "d.jsonl.zst", "z.jsonl", "b.txt"}));
  EXPECT_EQ(found.num_skipped, 1);
  EXPECT_EQ(found.files[0].compression, Compression::kGzip);
  EXPECT_EQ(found.files[1].format, TextFormat::kJsonl);
}

TEST(InputFilesTest, DatasetsInAFolderAreNoText) {
  const TempDir dir;
  for (const char* name : {"a.txt", "books.data/manifest.pb", "books.data/tokenizer/kind.txt",
                           "more/b.txt", "more/data/manifest.pb", "more/data/c.txt"}) {
    WriteText(dir / name, "x");
  }
  EXPECT_EQ(FileNames(FindInputFiles({dir.path().string()})),
            (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_HL_ERROR(
      FindInputFiles({(dir / "books.data").string()}), ExitCode::kData, "--input ",
      "books.data is a dataset, not text: it has a manifest.pb. Name the text of which");
}

TEST(InputFilesTest, PatternsNamesAndRepeats) {
  const TempDir dir;
  for (const char* name : {"1.txt", "2.txt", "3.jsonl", "odd[1].txt"}) WriteText(dir / name, "x");
  const std::string folder = dir.path().string();
  EXPECT_EQ(FileNames(FindInputFiles({folder + "/?.txt", folder + "/2.txt", folder + "/3.jsonl"})),
            (std::vector<std::string>{"1.txt", "2.txt", "3.jsonl"}));
  EXPECT_EQ(FileNames(FindInputFiles({folder + "/odd[1].txt"})),
            (std::vector<std::string>{"odd[1].txt"}));
}

TEST(InputFilesTest, Errors) {
  const TempDir dir;
  WriteText(dir / "a.pdf", "x");
  EXPECT_HL_ERROR(FindInputFiles({(dir / "*.txt").string()}), ExitCode::kData, "no file matches",
                  "*.txt");
  EXPECT_HL_ERROR(FindInputFiles({(dir / "a.pdf").string()}), ExitCode::kData, "a.pdf",
                  "unknown extension", ".jsonl");
  EXPECT_HL_ERROR(FindInputFiles({dir.path().string()}), ExitCode::kData, "contain no text",
                  "none of 1 files");
  WriteText(dir / "a.parquet", "x");
  EXPECT_HL_ERROR(FindInputFiles({(dir / "a.parquet").string()}), ExitCode::kData, "a.parquet",
                  "docs/data_format.md#parquet has the command");
  std::filesystem::create_symlink(dir / "nothing", dir / "link.txt");
  EXPECT_HL_ERROR(FindInputFiles({(dir / "link.txt").string()}), ExitCode::kData, "link.txt",
                  "is a broken link");
}

TEST(ByteStreamTest, CompressedEqualsPlain) {
  const TempDir dir;
  const std::string text = test::JoinByBlankLines(test::RandomDocuments(2000, 4));
  const std::string first = text.substr(0, 70000), second = text.substr(70000);
  WriteText(dir / "plain.txt", text);
  WriteText(dir / "one.txt.gz", Gzip(text));
  WriteText(dir / "two.txt.gz", Gzip(first) + Gzip("") + Gzip(second));
  WriteText(dir / "one.txt.zst", Zstd(text));
  WriteText(dir / "two.txt.zst", Zstd(first) + Zstd("") + Zstd(second));
  for (const char* name : {"plain.txt", "one.txt.gz", "two.txt.gz", "one.txt.zst", "two.txt.zst"}) {
    for (const size_t step : {size_t{1}, size_t{777}, size_t{1} << 20}) {
      EXPECT_EQ(ReadStream(dir / name, step), text) << name << ", " << step << " bytes a read";
    }
  }
}

// As `zstd --long=31` writes a frame: an unknown size of the text, a window, and here one block.
TEST(ByteStreamTest, FramesMayHaveLongWindows) {
  const TempDir dir;
  const std::string text = "a text in a block that is not compressed";
  for (const int window_log : {27, 28, 31}) {
    const auto window = static_cast<char>((window_log - 10) << 3);
    const auto block = static_cast<char>((text.size() << 3) | 1);  // the last one, as it is
    const std::string frame = std::string("\x28\xB5\x2F\xFD\0", 5) + window + block;
    ASSERT_EQ(text.size() >> 5, 1u) << "the size of the block has two bytes";
    WriteText(dir / "long.txt.zst", frame + static_cast<char>(text.size() >> 5) + '\0' + text);
    EXPECT_EQ(ReadStream(dir / "long.txt.zst", 4096), text) << "2^" << window_log << " bytes";
  }
}

TEST(ByteStreamTest, CutAndDamagedCompression) {
  const TempDir dir;
  const std::string text = test::JoinByBlankLines(test::RandomDocuments(500, 4));
  const std::string gzip = Gzip(text), zstd = Zstd(text);
  for (const size_t cut : {size_t{0}, size_t{5}, size_t{100}, gzip.size() - 1}) {
    WriteText(dir / "cut.txt.gz", gzip.substr(0, cut));
    EXPECT_HL_ERROR(ReadStream(dir / "cut.txt.gz", 4096), ExitCode::kData, "cut.txt.gz",
                    "truncated");
  }
  for (const size_t cut : {size_t{0}, size_t{5}, size_t{100}, zstd.size() - 1}) {
    WriteText(dir / "cut.txt.zst", zstd.substr(0, cut));
    EXPECT_HL_ERROR(ReadStream(dir / "cut.txt.zst", 4096), ExitCode::kData, "cut.txt.zst",
                    "truncated");
  }
  WriteText(dir / "bad.txt.gz", gzip + "rubbish after the end");
  EXPECT_HL_ERROR(ReadStream(dir / "bad.txt.gz", 4096), ExitCode::kData, "bad.txt.gz",
                  "not valid gzip", "incorrect header check");
  WriteText(dir / "bad.txt.zst", text);
  EXPECT_HL_ERROR(ReadStream(dir / "bad.txt.zst", 4096), ExitCode::kData, "bad.txt.zst",
                  "not valid zstd", "Unknown frame");
}

TEST(DocumentsTest, BlankLinesSeparate) {
  const TempDir dir;
  WriteText(dir / "a.txt", "\xEF\xBB\xBF\n \t\r\n\n  one\ntwo \n\nthree\r\n \t \r\n\n\nfour");
  EXPECT_EQ(Documents(dir / "a.txt", {.documents = DocumentMode::kBlankLines}),
            (std::vector<std::string>{"  one\ntwo ", "three", "four"}));
  EXPECT_EQ(Documents(dir / "a.txt", {.documents = DocumentMode::kLine}),
            (std::vector<std::string>{"  one", "two ", "three", "four"}));
  EXPECT_EQ(Documents(dir / "a.txt", {.documents = DocumentMode::kFile}),
            (std::vector<std::string>{"\n \t\r\n\n  one\ntwo \n\nthree\r\n \t \r\n\n\nfour"}));
}

TEST(DocumentsTest, TheSizeOfChunksChangesNothing) {
  const TempDir dir;
  std::vector<std::string> expected = test::RandomDocuments(300, 8);
  std::string text;
  for (size_t i = 0; i < expected.size(); ++i) {
    text += expected[i] + (i % 3 == 0 ? "\n\n" : i % 3 == 1 ? "\n \t\r\n\n" : "\n\n\n\n");
  }
  WriteText(dir / "a.txt", text);
  for (const int64_t chunk : {1, 2, 7, 64, 1000, 1 << 20}) {
    EXPECT_EQ(
        Documents(dir / "a.txt", {.documents = DocumentMode::kBlankLines, .chunk_bytes = chunk}),
        expected)
        << chunk;
  }
}

TEST(DocumentsTest, EachLineIsADocument) {
  const TempDir dir;
  std::vector<std::string> expected;
  std::string text = "\n";
  for (const std::string& block : test::RandomDocuments(300, 8)) {
    for (size_t at = 0; at < block.size();) {
      const size_t end = std::min(block.find('\n', at), block.size());
      expected.push_back(block.substr(at, end - at));
      text += expected.back() + (expected.size() % 3 == 0 ? "\r\n" : "\n");
      at = end + 1;
    }
    text += " \t\n\n";
  }
  text += "no end of line";
  expected.emplace_back("no end of line");
  WriteText(dir / "a.txt", text);
  const DocumentMode line = DocumentMode::kLine;
  for (const int64_t chunk : {1, 2, 7, 64, 1000, 1 << 20})
    EXPECT_EQ(Documents(dir / "a.txt", {.documents = line, .chunk_bytes = chunk}), expected)
        << chunk;
  int64_t num_empty = 0;
  const InputFiles found = FindInputFiles({dir / "a.txt"});
  TextChunker chunker(found.files, {.documents = line, .chunk_bytes = 100});
  while (auto chunk = chunker.Next())
    num_empty += ForEachDocument(*std::move(chunk), {}, [](const Document&) {});
  EXPECT_EQ(num_empty, 601) << "blank lines";
}

// The two parts of a file that is split by size, as documents.
struct Parts {
  std::vector<std::string> train, validation;
  bool operator==(const Parts&) const = default;
};
Parts CutTail(const std::filesystem::path& path, const ChunkerConfig& config,
              DocumentRules rules = {}) {
  const InputFiles found = FindInputFiles({path.string()});
  TextChunker chunker(found.files, config);
  rules.allow_pieces = config.allow_pieces;
  Parts parts;
  bool open = false;
  while (auto chunk = chunker.Next()) {
    auto& documents = chunk->split == Split::kTrain ? parts.train : parts.validation;
    ForEachDocument(*std::move(chunk), rules, [&](const Document& document) {
      EXPECT_EQ(document.begins, !open);
      if (document.begins) documents.emplace_back();
      documents.back() += document.text;
      open = !document.ends;
    });
  }
  EXPECT_FALSE(open);
  return parts;
}

TEST(TailTest, AFileIsCutBeforeACharacter) {
  const TempDir dir;
  const std::string smile = "\xF0\x9F\x99\x82";
  WriteText(dir / "a.txt", "0123456789");
  WriteText(dir / "b.txt", "01" + smile + "6789");
  const auto cut = [&](const char* name, double tail) {
    return CutTail(dir / name, {.validation_tail = tail});
  };
  EXPECT_EQ(cut("a.txt", 0.1), (Parts{{"012345678"}, {"9"}}));
  EXPECT_EQ(cut("a.txt", 0.25), (Parts{{"0123456"}, {"789"}})) << "floor(7.5)";
  EXPECT_EQ(cut("b.txt", 0.8), (Parts{{"01"}, {smile + "6789"}}));
  for (const double tail : {0.7, 0.6, 0.5, 0.4})
    EXPECT_EQ(cut("b.txt", tail), (Parts{{"01" + smile}, {"6789"}})) << tail;
}

TEST(TailTest, LinesAndBlocksAreNotCut) {
  const TempDir dir;
  WriteText(dir / "a.txt", "one\ntwo\n\nsix\nsev\n");  // 17 bytes, lines at 0, 4, 8, 9 and 13.
  // The tail starts at the byte `begin` or after it.
  const auto cut = [&](DocumentMode mode, int begin) {
    return CutTail(dir / "a.txt", {.documents = mode, .validation_tail = 1 - (begin + 0.5) / 17});
  };
  const DocumentMode line = DocumentMode::kLine, blank_lines = DocumentMode::kBlankLines;
  EXPECT_EQ(cut(line, 3), (Parts{{"one"}, {"two", "six", "sev"}}));
  EXPECT_EQ(cut(line, 4), (Parts{{"one"}, {"two", "six", "sev"}})) << "at its first byte";
  EXPECT_EQ(cut(line, 5), (Parts{{"one", "two"}, {"six", "sev"}}));
  EXPECT_EQ(cut(line, 14), (Parts{{"one", "two", "six", "sev"}, {}})) << "no line begins there";
  EXPECT_EQ(cut(blank_lines, 1), (Parts{{"one\ntwo"}, {"six\nsev"}}));
  EXPECT_EQ(cut(blank_lines, 9), (Parts{{"one\ntwo"}, {"six\nsev"}}));
  EXPECT_EQ(cut(blank_lines, 10), (Parts{{"one\ntwo", "six\nsev"}, {}}));
}

TEST(TailTest, ChunksPiecesAndCompressionChangeNothing) {
  const TempDir dir;
  std::string text = test::JoinByBlankLines(test::RandomDocuments(500, 3));
  while (text.size() < 400000) text += "a long line \xE2\x82\xAC\xF0\x9F\x99\x82 of one document ";
  text += "\n\n" + test::JoinByBlankLines(test::RandomDocuments(300, 4));
  WriteText(dir / "a.txt", text);
  WriteText(dir / "a.txt.gz", Gzip(text));
  WriteText(dir / "bad.txt", "\xFF\xFE" + text);
  const DocumentRules replace = {.replace_invalid_utf8 = true};
  for (const DocumentMode mode :
       {DocumentMode::kFile, DocumentMode::kLine, DocumentMode::kBlankLines}) {
    for (const double tail : {0.01, 0.3, 0.97}) {
      SCOPED_TRACE(Concat(Name(mode), " ", tail));
      ChunkerConfig config = {.documents = mode, .validation_tail = tail};
      const Parts expected = CutTail(dir / "a.txt", config);
      const Parts bad = CutTail(dir / "bad.txt", config, replace);
      if (mode == DocumentMode::kFile) {
        EXPECT_EQ(expected.train.front() + expected.validation.front(), text);
      } else {
        std::vector<std::string> all = expected.train;
        all.insert(all.end(), expected.validation.begin(), expected.validation.end());
        EXPECT_EQ(all, Documents(dir / "a.txt", {.documents = mode}));
      }
      for (const int64_t chunk : {1000, 70000, 70001}) {
        config.chunk_bytes = chunk;
        for (const bool pieces : {false, true}) {
          config.allow_pieces = pieces;
          EXPECT_EQ(CutTail(dir / "a.txt", config), expected) << chunk << " " << pieces;
          EXPECT_EQ(CutTail(dir / "a.txt.gz", config), expected) << chunk << " " << pieces;
          EXPECT_EQ(CutTail(dir / "bad.txt", config, replace), bad) << chunk << " " << pieces;
        }
      }
    }
  }
}

TEST(TailTest, RecordsHaveNone) {
  const TempDir dir;
  WriteText(dir / "a.jsonl", "{}");
  EXPECT_HL_ERROR(CutTail(dir / "a.jsonl", {.validation_tail = 0.1}), ExitCode::kUsage,
                  "--validation-tail cuts .txt files", "a.jsonl contains records",
                  "Use --validation-fraction");
}

TEST(DocumentsTest, LongDocumentsComeInPieces) {
  const TempDir dir;
  std::string text;
  while (text.size() < 400000) {
    text += "a longer line \xE2\x82\xAC\xF0\x9F\x99\x82 of one document   \r\n \xC3\xA4\n";
  }
  WriteText(dir / "a.txt", "short\n\n" + text + "\n\nlast");
  const DocumentMode blank_lines = DocumentMode::kBlankLines;
  const auto whole = Documents(dir / "a.txt", {.documents = blank_lines});
  ASSERT_EQ(whole.size(), 3u);
  for (const int64_t chunk : {70000, 70001, 70002, 70003, 131072}) {
    const ChunkerConfig pieces{.documents = blank_lines,
                               .allow_pieces = true,
                               .chunk_bytes = chunk,
                               .max_document_bytes = 150000};
    EXPECT_EQ(Documents(dir / "a.txt", pieces), whole) << chunk;
    ChunkerConfig file = pieces;
    file.documents = DocumentMode::kFile;
    EXPECT_EQ(Documents(dir / "a.txt", file).front(), "short\n\n" + text + "\n\nlast") << chunk;
  }
  ChunkerConfig limited = {
      .documents = blank_lines, .chunk_bytes = 1000, .max_document_bytes = 100000};
  EXPECT_HL_ERROR(Documents(dir / "a.txt", limited), ExitCode::kData, "a.txt", "byte 7", "line 3",
                  "--max-document-bytes 100000",
                  "Raise --max-document-bytes, or cut the text into shorter documents with "
                  "--documents blank_lines or --documents line.");
  // The same limit if the document fits into a chunk.
  limited.chunk_bytes = 1 << 20;
  EXPECT_HL_ERROR(Documents(dir / "a.txt", limited), ExitCode::kData, "a.txt:3",
                  "--max-document-bytes 100000");
}

TEST(DocumentsTest, JsonRecords) {
  const TempDir dir;
  WriteText(
      dir / "a.jsonl",
      "{\"text\": \"one\\n\\ntwo\", \"id\": 1}\r\n\n{\"text\": \"\"}\n{\"text\":\"\\u20ac\"}");
  for (const int64_t chunk : {1, 10, 1 << 20}) {
    EXPECT_EQ(Documents(dir / "a.jsonl", {.chunk_bytes = chunk}),
              (std::vector<std::string>{"one\n\ntwo", "\xE2\x82\xAC"}));
  }
  WriteText(dir / "b.jsonl", "{\"body\": \"b\"}\n");
  EXPECT_EQ(Documents(dir / "b.jsonl", {}, {.field = "body"}), (std::vector<std::string>{"b"}));
}

TEST(DocumentsTest, BadRecordsNameFileAndLine) {
  const TempDir dir;
  const std::string good = "{\"text\": \"good\"}\n";
  const auto expect = [&](const std::string& line, std::initializer_list<std::string> words) {
    WriteText(dir / "bad.jsonl", good + good + line + "\n" + good);
    for (const int64_t chunk : {1, 1 << 20}) {
      halflife::test::ExpectError([&] { Documents(dir / "bad.jsonl", {.chunk_bytes = chunk}); },
                                  ExitCode::kData, words, __FILE__, __LINE__);
    }
  };
  expect("{\"id\": 1, \"body\": \"x\"}",
         {"bad.jsonl:3: ", "no field 'text'", "body, id", "--field"});
  expect("{\"text\": \"x\"", {"bad.jsonl:3: ", "not a JSON record", "parse error at column 13"});
  expect("{\"text\": 5}", {"bad.jsonl:3: ", "'text' is a JSON number"});
  expect("[1, 2]", {"bad.jsonl:3: ", "a JSON array where a record"});
  WriteText(dir / "bad.jsonl", good + "{\"text\": \"" + std::string(3000, 'x') + "\"}\n");
  EXPECT_HL_ERROR(Documents(dir / "bad.jsonl", {.max_document_bytes = 1000}), ExitCode::kData,
                  "bad.jsonl:2: ", "3000 bytes", "--max-document-bytes 1000");
}

TEST(DocumentsTest, InvalidUtf8) {
  const TempDir dir;
  WriteText(dir / "a.txt",
            "fine\n\nnot \xFF"
            "fine\n\nmore");
  for (const int64_t chunk : {1, 1 << 20}) {
    const ChunkerConfig config = {.documents = DocumentMode::kBlankLines, .chunk_bytes = chunk};
    EXPECT_HL_ERROR(Documents(dir / "a.txt", config), ExitCode::kData, "a.txt", "byte 10", "line 3",
                    "--invalid-utf8 replace");
    EXPECT_EQ(Documents(dir / "a.txt", config, {.replace_invalid_utf8 = true}),
              (std::vector<std::string>{"fine",
                                        "not \xEF\xBF\xBD"
                                        "fine",
                                        "more"}));
  }
}

// Files that Python's json wrote from damaged text have such escapes.
TEST(DocumentsTest, HalvesOfSurrogatePairs) {
  const TempDir dir;
  const std::string pair = R"(\ud83d\ude00)", smile = "\xF0\x9F\x98\x80", bad = "\xEF\xBF\xBD";
  const auto read = [&](const std::string& value, bool replace) {
    WriteText(dir / "a.jsonl", "{\"text\": \"fine\"}\n{\"text\": \"" + value + "\"}\n");
    return Documents(dir / "a.jsonl", {.chunk_bytes = 1}, {.replace_invalid_utf8 = replace}).at(1);
  };
  struct Case {
    std::string json, half, text;
  };
  for (const auto& [json, half, text] :
       {Case{R"(\ud83d)", R"(\ud83d)", bad}, Case{R"(a\uDE00b)", R"(\uDE00)", "a" + bad + "b"},
        Case{R"(\ude00\ud83d)", R"(\ude00)", bad + bad},
        Case{R"(\uD83D)" + pair, R"(\uD83D)", bad + smile},
        Case{R"(\\\ud83d\n)", R"(\ud83d)", "\\" + bad + "\n"}}) {
    EXPECT_HL_ERROR(read(json, false), ExitCode::kData,
                    "a.jsonl:2: the escape " + half + " is half", "--invalid-utf8 replace");
    EXPECT_EQ(read(json, true), text) << json;
  }
  for (const auto& [json, text] :
       {std::pair(pair, smile), std::pair(pair + pair, smile + smile),
        std::pair<std::string, std::string>(R"(\\ud83d)", R"(\ud83d)"),
        std::pair<std::string, std::string>(R"(\u20ac\"\u0041)", "\xE2\x82\xAC\"A")}) {
    EXPECT_EQ(read(json, false), text) << json;
    EXPECT_EQ(read(json, true), text) << json;
  }
}

TEST(DocumentsTest, RecordsAreDocumentsInEveryMode) {
  const TempDir dir;
  WriteText(dir / "a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  for (const DocumentMode mode :
       {DocumentMode::kFile, DocumentMode::kLine, DocumentMode::kBlankLines})
    EXPECT_EQ(Documents(dir / "a.jsonl", {.documents = mode}),
              (std::vector<std::string>{"a", "b"}));
}

TEST(SplitTest, DependsOnlyOnContentAndSeed) {
  DocumentRules rules{.validation_fraction = 0.3};
  int validation = 0, moved = 0;
  const auto documents = test::RandomDocuments(2000, 1);
  for (const std::string& text : documents) {
    rules.split_seed = 0;
    const Split split = ChooseSplit(ContentHash(text), rules);
    validation += split == Split::kValidation;
    rules.split_seed = 1;
    moved += ChooseSplit(ContentHash(text), rules) != split;
  }
  // Binomial with p = 0.3: one sigma is 20.5 of 2000 documents, six sigmas are 123. Two seeds
  // differ with p = 0.42.
  EXPECT_NEAR(validation, 600, 123);
  EXPECT_NEAR(moved, 840, 133);
}

}  // namespace
}  // namespace halflife::data
