// Reading records of tables and JSON lines, in any chunks.
#include "data/records.h"

#include <gtest/gtest.h>

#include "data/small_datasets.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

using test::WriteText;
using Values = std::vector<std::vector<std::string>>;

class Records : public testing::Test {
 protected:
  // Reads a file with this name and text in chunks of a few bytes.
  Values Read(const std::string& name, const std::string& text) const {
    WriteText(dir_ / name, text);
    const auto files = FindInputFiles({(dir_ / name).string()}, "--input", kRecordFormats).files;
    const RecordReader reader(
        files, {{"text", "--field"}, {"label", "--label-field", FieldForm::kScalar}});
    TextChunker chunker(files, {.chunk_bytes = 8});
    Values values;
    while (const auto chunk = chunker.Next())
      reader.ForEach(*chunk, [&](const Record& record) { values.push_back(record.values); });
    return values;
  }
  halflife::test::TempDir dir_;
};

TEST_F(Records, ColumnsByTheNamesOfTheFirstLine) {
  EXPECT_EQ(Read("a.tsv", "id\tlabel\ttext\n1\tyes\tone text\n\n2\tno\t\n3\t\tlast"),
            (Values{{"one text", "yes"}, {"", "no"}, {"last", ""}}));
  EXPECT_EQ(Read("dos.tsv", "\xEF\xBB\xBFtext\tlabel\r\na\t1\r\n"), (Values{{"a", "1"}}));
}

TEST_F(Records, FieldsOfObjects) {
  EXPECT_EQ(
      Read("a.jsonl", "{\"label\": 1, \"text\": \"a\\tb\"}\n{\"text\": \"c\", \"label\": true}"),
      (Values{{"a\tb", "1"}, {"c", "true"}}));
}

// Printing a value recurses once per nested bracket, so that deep ones would overflow the stack.
TEST_F(Records, DeepValuesAreRefused) {
  const auto read = [&](int depth) {
    const std::string deep = std::string(static_cast<size_t>(depth), '['),
                      text = "{\"list\": []}\n{\"list\": " + deep +
                             std::string(static_cast<size_t>(depth), ']') + "}";
    WriteText(dir_ / "deep.jsonl", text);
    const auto files = FindInputFiles({(dir_ / "deep.jsonl").string()}).files;
    const RecordReader reader(files, {{"list", "--messages-field", FieldForm::kJson}});
    TextChunker chunker(files, {});
    std::vector<std::string> values;
    while (const auto chunk = chunker.Next())
      reader.ForEach(*chunk, [&](const Record& record) { values.push_back(record.values[0]); });
    return values;
  };
  EXPECT_EQ(read(63).back().size(), 126u);
  EXPECT_HL_ERROR(read(64), ExitCode::kData, "deep.jsonl:2: the record is nested 65 deep, more ",
                  "than the limit of 64 levels. Remove the deep values");
  EXPECT_HL_ERROR(read(1000000), ExitCode::kData, "deep.jsonl:2: the record is nested 1000001");
}

TEST_F(Records, WhatIsNone) {
  EXPECT_HL_ERROR(Read("n.tsv", "sequence\tlabel\nACGT\t1\n"), ExitCode::kData, "n.tsv:1: ",
                  "no column is called 'text'; the first line names them: sequence, label; choose "
                  "one with --field");
  EXPECT_HL_ERROR(Read("two.tsv", "text\ttext\tlabel\n"), ExitCode::kData,
                  "several columns are called 'text'");
  EXPECT_HL_ERROR(Read("w.tsv", "text\tlabel\na\t1\nb\tc\t0\n"), ExitCode::kData,
                  "w.tsv:3: 3 columns, but the first line names 2");
  EXPECT_HL_ERROR(Read("m.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\"}"),
                  ExitCode::kData, "m.jsonl:2: the record has no field 'label'; it has: text",
                  "--label-field");
  EXPECT_HL_ERROR(Read("c.jsonl", "{\"messages\": []}"), ExitCode::kData, "it has: messages",
                  "or read conversations with --labels messages");
  EXPECT_HL_ERROR(Read("f.jsonl", "{\"text\": \"a\", \"label\": 0.5}"), ExitCode::kData,
                  "'label' is a JSON number, not a string, whole number or boolean");
  EXPECT_HL_ERROR(Read("t.jsonl", "{\"text\": 3, \"label\": 0}"), ExitCode::kData,
                  "'text' is a JSON number, not a string; choose another with --field");
  WriteText(dir_ / "a.txt", "text");
  EXPECT_HL_ERROR(FindInputFiles({(dir_ / "a.txt").string()}, "--input", kRecordFormats),
                  ExitCode::kData, "unknown extension. Use .tsv, .jsonl, or one of them");
}

}  // namespace
}  // namespace halflife::data
