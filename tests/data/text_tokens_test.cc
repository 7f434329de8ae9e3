// Encoding files for evaluation gives the tokens of `prepare`.
#include "data/text_tokens.h"

#include <gtest/gtest.h>

#include "data/prepare/prepare.h"
#include "data/small_bpe.h"
#include "data/small_datasets.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

using halflife::test::TempDir;
using test::JoinByBlankLines;
using test::RandomDocuments;
using test::WriteText;

// For every tokenizer, compression and size, the tokens are those of prepare.
TEST(EncodeFilesTest, IsWhatPrepareMakesOfFilesAsDocuments) {
  const TempDir dir;
  WriteText(dir / "train.txt", "training text\n");
  WriteText(dir / "one.txt", "\xEF\xBB\xBF\n" + JoinByBlankLines(RandomDocuments(50, 1)));
  WriteText(dir / "empty.txt", "");
  WriteText(dir / "two.txt.gz", test::Gzip(JoinByBlankLines(RandomDocuments(3000, 2))));
  for (const auto& [folder, json] :
       {std::pair("hf", test::SmallBpeJson()), {"bos", test::SmallBpeWithBosJson()}})
    for (const auto& [name, bytes] : test::BpeFiles(json)) WriteText(dir / folder / name, bytes);
  const std::vector<std::string> files = {dir / "one.txt", dir / "empty.txt", dir / "two.txt.gz"};
  for (const std::string tokenizer : {"bytes", "hf", "bos"}) {
    SCOPED_TRACE(tokenizer);
    PrepareConfig config = test::ByteConfig(dir / "train.txt", dir / (tokenizer + ".data"));
    if (tokenizer != "bytes") config.input.tokenizer = dir / tokenizer;
    config.input.validation_paths = files;
    config.documents = DocumentMode::kFile;
    Prepare(config);
    const Dataset dataset = Dataset::Open(config.output.out);
    const TextTokens text = EncodeFiles(files, *dataset.LoadTokenizer());
    EXPECT_EQ(text.ids, test::ReadAll(dataset, Split::kValidation));
    if (tokenizer == "bos") {
      EXPECT_EQ(text.ids.front(), test::kBegin);
      EXPECT_EQ(std::ranges::count(text.ids, test::kBegin), 2) << "one in each document";
      const std::unique_ptr<Tokenizer> without = dataset.LoadTokenizer();
      without->set_begins_with_bos(false);
      EXPECT_HL_ERROR(RequireSameTokens(dataset, *without, "runs/old"), ExitCode::kUsage,
                      "texts of the dataset", "begin with bos, but those of runs/old do not",
                      "halflife prepare --tokenizer");
    }
    EXPECT_EQ(text.info.num_tokens, dataset.info().validation.num_tokens);
    EXPECT_EQ(text.info.num_documents, 2);
    EXPECT_EQ(dataset.info().validation.num_documents, 2);
    EXPECT_EQ(text.info.num_bytes, dataset.info().validation.num_bytes);
    ASSERT_EQ(text.info.sources.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const Source &own = text.info.sources[i], &theirs = dataset.info().validation.sources[i];
      EXPECT_EQ(own.name, i == 0 ? "one.txt" : "two.txt.gz");
      EXPECT_EQ(own.name, theirs.name);
      EXPECT_EQ(own.num_tokens, theirs.num_tokens);
      EXPECT_EQ(own.num_documents, 1);
    }
    const Batch ours = ReadWindows(ViewOf(text), 32, 3, 4);
    const Batch theirs = ReadWindows(dataset, Split::kValidation, 32, 3, 4);
    EXPECT_EQ(ours.inputs, theirs.inputs);
    EXPECT_EQ(ours.targets, theirs.targets);
    EXPECT_EQ(ours.cu_seqlens, theirs.cu_seqlens);
  }
}

TEST(EncodeFilesTest, Errors) {
  const TempDir dir;
  const auto bytes = MakeByteTokenizer();
  WriteText(dir / "empty.txt", "");
  WriteText(dir / "latin1.txt", "caf\xE9");
  WriteText(dir / "a.jsonl.zst", test::Zstd("{\"text\": \"a\"}"));
  const auto encode = [&](const char* name) { EncodeFiles({dir / name}, *bytes); };
  EXPECT_HL_ERROR(encode("none.txt"), ExitCode::kData, "none.txt is not a regular file");
  EXPECT_HL_ERROR(encode("."), ExitCode::kData, "is not a regular file");
  EXPECT_HL_ERROR(encode("empty.txt"), ExitCode::kData, "there is no text in", "empty.txt");
  EXPECT_HL_ERROR(encode("latin1.txt"), ExitCode::kData, "latin1.txt: byte 3", "not valid UTF-8",
                  "halflife prepare --invalid-utf8 replace");
  EXPECT_HL_ERROR(encode("a.jsonl.zst"), ExitCode::kData, "a.jsonl.zst contains records",
                  "halflife prepare --validation-input");
}

}  // namespace
}  // namespace halflife::data
