// Tables as CSV and HTML.
#include "report/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace halflife::report {
namespace {

const Table kTable = {.title = "a & b",
                      .header = {"name", "loss, nats"},
                      .rows = {{"<x>", "1.5"}, {"say \"hi\"", ""}, {"two\nlines", "-3e-4"}}};

TEST(Table, CsvQuotesWhatWouldPartFieldsOrLines) {
  EXPECT_EQ(Csv(kTable),
            "name,\"loss, nats\"\n<x>,1.5\n\"say \"\"hi\"\"\",\n\"two\nlines\",-3e-4\n");
}

TEST(Table, OnAPageTextsAreEscapedAndNumbersStandApart) {
  const std::string html = RenderTable(kTable);
  EXPECT_THAT(html, testing::HasSubstr("<h2>a &amp; b</h2>"));
  EXPECT_THAT(html, testing::HasSubstr("<td class=\"words\">&lt;x&gt;</td><td>1.5</td>"));
  EXPECT_THAT(html, testing::HasSubstr("<td>-3e-4</td>"));
}

TEST(Table, AColumnOfNumbersIsAlignedToTheRight) {
  const Table table = {.title = "t",
                       .header = {"run", "loss", "size", "mixed"},
                       .rows = {{"a", "1.5", "16.8k", "1"}, {"bcd", "–", "2M", "none"}}};
  EXPECT_THAT(RenderTable(table),
              testing::HasSubstr("<th class=\"words\">run</th><th>loss</th><th>size</th>"
                                 "<th class=\"words\">mixed</th>"));
  EXPECT_EQ(AlignedText(table),
            "run  loss   size  mixed\n"
            "a     1.5  16.8k  1\n"
            "bcd     –     2M  none\n");
}

TEST(Table, TheFirstCellOfARowMayBeALink) {
  const Table table = {.title = "t",
                       .header = {"run", "loss"},
                       .rows = {{"a&b", "1"}, {"c", "2"}},
                       .links = {"runs/a&b/", ""}};
  const std::string html = RenderTable(table);
  EXPECT_THAT(html, testing::HasSubstr("<a href=\"runs/a%26b/\">a&amp;b</a></td><td>1</td>"));
  EXPECT_THAT(html, testing::HasSubstr("<td class=\"words\">c</td>"));
}

}  // namespace
}  // namespace halflife::report
