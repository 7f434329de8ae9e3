// Checks the report of operations that make the host wait for the device.
#include "train/record/run_timing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace halflife::train {
namespace {

using testing::HasSubstr;
using testing::Not;

HostWaitReport::Phases Quiet() {
  return {{"backward", {.kernels = {{"aten::mm", 7}}}},
          {"data", {.uploads = 4}},
          {"forward", {.kernels = {{"aten::mm", 3}, {"halflife::kernel", 2}}}},
          {"reduce", {.kernels = {{"halflife::kernel", 1}}, .read_backs = 1}}};
}

TEST(HostWaitReport, ReportsThatOnlyOneReadWaits) {
  HostWaitReport report;
  EXPECT_THAT(report.Text(), HasSubstr("no step ran"));
  for (int step = 0; step < 2; ++step) report.Add(Quiet());
  EXPECT_EQ(report.Text(),
            "host waits, means of 2 steps:\n"
            "  data: 0.0 waits, 0.0 reads, 4.0 uploads, 0.0 launches\n"
            "  forward: 0.0 waits, 0.0 reads, 0.0 uploads, 5.0 launches\n"
            "  backward: 0.0 waits, 0.0 reads, 0.0 uploads, 7.0 launches\n"
            "  reduce: 0.0 waits, 1.0 reads, 0.0 uploads, 1.0 launches\n"
            "  the only wait is the one read of a step's scalars");
}

TEST(HostWaitReport, NamesWhatWaitsAndWhere) {
  HostWaitReport report;
  report.Add(Quiet());
  HostWaitReport::Phases loud = Quiet();
  loud["forward"].waits = {{"aten::_local_scalar_dense", 3}, {"aten::nonzero", 1}};
  report.Add(loud);
  const std::string text = report.Text();
  EXPECT_THAT(text, HasSubstr("  forward: 2.0 waits, 0.0 reads, 0.0 uploads, 5.0 launches\n"
                              "    waits in aten::_local_scalar_dense: 1.5\n"
                              "    waits in aten::nonzero: 0.5\n"));
  EXPECT_THAT(text,
              HasSubstr("a step waits 3.0 times; only 1, the read of its scalars, is needed"));
  EXPECT_THAT(text, Not(HasSubstr("the only wait")));
}

// A second read per step is one too many, even if no operation waits.
TEST(HostWaitReport, CountsReads) {
  HostWaitReport report;
  HostWaitReport::Phases twice = Quiet();
  twice["forward"].read_backs = 1;
  report.Add(twice);
  EXPECT_THAT(report.Text(), HasSubstr("a step waits 2.0 times"));
}

}  // namespace
}  // namespace halflife::train
