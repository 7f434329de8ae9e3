// Compares schedules with results that were calculated by hand.
#include "train/plan/timeline.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

void ExpectInterval(const Timeline& timeline, size_t index, double begin, double end) {
  EXPECT_DOUBLE_EQ(timeline.intervals[index].begin, begin) << index;
  EXPECT_DOUBLE_EQ(timeline.intervals[index].end, end) << index;
}

TEST(Timeline, LanesWorkSideBySideAndWaitForWhatTheyComeAfter) {
  const Timeline timeline = Schedule({{.lane = 0, .seconds = 2},
                                      {.lane = 1, .seconds = 3, .after = {0}},
                                      {.lane = 0, .seconds = 1},
                                      {.lane = 0, .seconds = 1, .after = {1, 2}}},
                                     {});
  ExpectInterval(timeline, 0, 0, 2);
  ExpectInterval(timeline, 1, 2, 5);
  ExpectInterval(timeline, 2, 2, 3);
  ExpectInterval(timeline, 3, 5, 6);
  EXPECT_EQ(timeline.begun_after, (std::vector<int>{-1, 0, 0, 1}));
}

// The last operation waits from 1 on: until 3 for the first operation of lane 1, until 7 for the
// second, which follows it, and until 8 for lane 2.
TEST(Timeline, ReportsTheCauseOfAWait) {
  const std::vector<TimelineOperation> operations = {{.lane = 0, .seconds = 1},
                                                     {.lane = 1, .seconds = 3},
                                                     {.lane = 1, .seconds = 4},
                                                     {.lane = 2, .seconds = 1, .after = {2}},
                                                     {.lane = 0, .seconds = 1, .after = {3}}};
  const Timeline timeline = Schedule(operations, {});
  const std::vector<Waited> waits = WaitsOf(4, operations, timeline);
  ASSERT_EQ(waits.size(), 3u);
  const std::vector<Waited> want = {{3, 1}, {2, 4}, {1, 2}};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(waits[i].operation, want[i].operation) << i;
    EXPECT_DOUBLE_EQ(waits[i].seconds, want[i].seconds) << i;
  }
  EXPECT_TRUE(WaitsOf(0, operations, timeline).empty());
  EXPECT_TRUE(WaitsOf(2, operations, timeline).empty()) << "its lane was not free";
}

TEST(Timeline, ALaneKeepsItsOrder) {
  // The third operation is ready at 1, but must wait for the second, which is ready at 4.
  const Timeline timeline = Schedule({{.lane = 0, .seconds = 1},
                                      {.lane = 0, .seconds = 3},
                                      {.lane = 1, .seconds = 2, .after = {1}},
                                      {.lane = 1, .seconds = 2, .after = {0}}},
                                     {});
  ExpectInterval(timeline, 2, 4, 6);
  ExpectInterval(timeline, 3, 6, 8);
}

TEST(Timeline, SlowsOverlappingOperationsDown) {
  // Lane 1 is busy in [1, 3]. Of the 4 s of compute after 1, these 2 s do the work of 1.6 s without
  // overlap.
  const Timeline timeline = Schedule({{.lane = 0, .seconds = 1},
                                      {.lane = 1, .seconds = 2, .after = {0}},
                                      {.lane = 0, .seconds = 4}},
                                     {.taxed_lane = 0, .tax = 0.25});
  ExpectInterval(timeline, 2, 1, 5.4);
  EXPECT_NEAR(timeline.taxed_seconds, 0.4, 1e-12);
  // Everything overlaps: 1 s becomes 1.25 s.
  const Timeline within = Schedule({{.lane = 1, .seconds = 9}, {.lane = 0, .seconds = 1}},
                                   {.taxed_lane = 0, .tax = 0.25});
  ExpectInterval(within, 1, 0, 1.25);
}

TEST(Timeline, OtherLanesThatOverlapTaxOnce) {
  // Lanes 1 and 2 are busy in [0, 2] and [1, 3]. Until 3, compute finishes 2.4 s of its 3 s.
  const Timeline timeline = Schedule({{.lane = 1, .seconds = 2},
                                      {.lane = 3, .seconds = 1},
                                      {.lane = 2, .seconds = 2, .after = {1}},
                                      {.lane = 0, .seconds = 3}},
                                     {.taxed_lane = 0, .tax = 0.25});
  EXPECT_NEAR(timeline.intervals[3].end, 3.6, 1e-12);
  EXPECT_NEAR(timeline.taxed_seconds, 0.6, 1e-12);
}

TEST(Timeline, RefusesWhatComesAfterALaterOne) {
  EXPECT_HL_ERROR(Schedule({{.lane = 0, .seconds = 1, .after = {0}}}, {}), ExitCode::kInternal,
                  "operation 0 comes after 0");
}

}  // namespace
}  // namespace halflife::train
