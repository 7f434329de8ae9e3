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

}  // namespace
}  // namespace halflife::report
