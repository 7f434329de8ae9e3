// train --check-sync reports the operations of a step that would make the host wait for a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CheckSyncE2e, ReportsEachPhaseAndChangesNothing) {
  const RunFixture fixture;
  const RunResult plain = ExpectExit(fixture.Run({.run = "plain", .set = {"train.steps=3"}}), 0);
  EXPECT_THAT(plain.err, Not(HasSubstr("host waits")));
  const RunResult checked = ExpectExit(
      fixture.Run({.run = "checked", .set = {"train.steps=3"}, .flags = {"--check-sync"}}), 0,
      {"host waits, means of 3 steps:"});
  for (const char* phase : {"data", "forward", "backward", "update"})
    EXPECT_THAT(checked.err, HasSubstr(std::string("  ") + phase + ": 0.0 waits, 0.0 reads, "));
  EXPECT_THAT(checked.err, HasSubstr("  reduce: 0.0 waits, 1.0 reads, "));
  EXPECT_THAT(checked.err, HasSubstr("the only wait is the one read of a step's scalars"));
  const auto losses = [&](const char* run) {
    std::vector<double> values;
    for (const auto& line : fixture.Metrics(run, "loss")) values.push_back(line.at("loss"));
    return values;
  };
  EXPECT_EQ(losses("plain"), losses("checked"));
  EXPECT_EQ(losses("plain").size(), 3u);
}

TEST(CheckSyncE2e, OneRankReportsIfRanksShareRows) {
  const RunFixture fixture;
  const RunResult result =
      ExpectExit(fixture.Run({.run = "run",
                              .set = {"train.steps=2", "parallel.sp=2", "parallel.zero_stage=1",
                                      "train.micro_batch=4"},
                              .flags = {"--check-sync", "--local-ranks", "2"}}),
                 0);
  const size_t first = result.err.find("host waits");
  ASSERT_NE(first, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("host waits", first + 1), std::string::npos);
}

}  // namespace
}  // namespace halflife::test
