// The warning about more threads or ranks than cores.
#include "cli/world.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/concat.h"
#include "core/host.h"
#include "dist/local_communicator.h"
#include "dist/rank_context.h"

namespace halflife::cli {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;

std::string LogOfOneProcess(int threads) {
  testing::internal::CaptureStderr();
  WarnOfBusyCores(threads);
  return testing::internal::GetCapturedStderr();
}

std::string LogOfRanks(int ranks) {
  testing::internal::CaptureStderr();
  dist::LocalWorld::Run(ranks, [](dist::Communicator& comm) {
    at::set_num_threads(1);
    WarnOfBusyCores(*dist::MakeLocalRankContext(comm));
  });
  return testing::internal::GetCapturedStderr();
}

TEST(BusyCores, ThreadsAboveTheCoresOfAProcess) {
  const int cores = NumUsableCores();
  EXPECT_THAT(LogOfOneProcess(0), IsEmpty());
  EXPECT_THAT(LogOfOneProcess(cores), IsEmpty());
  EXPECT_THAT(LogOfOneProcess(cores + 1),
              HasSubstr(Concat("--threads ", cores + 1, " is more than the ", cores, " core")));
  EXPECT_THAT(LogOfOneProcess(cores + 1), HasSubstr(Concat("Use --threads ", cores, ".")));
}

TEST(BusyCores, RanksOfAHostAboveItsCoresAreReportedOnce) {
  const int cores = NumUsableCores();
  EXPECT_THAT(LogOfRanks(1), IsEmpty());
  const std::string log = LogOfRanks(cores + 1);
  EXPECT_THAT(log, ContainsRegex(Concat("ranks: ", cores + 1, " on .*, ", cores + 1,
                                        " threads in total: more threads than cores")));
  EXPECT_THAT(log, HasSubstr("Use fewer ranks, or fewer threads for each."));
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
}

}  // namespace
}  // namespace halflife::cli
