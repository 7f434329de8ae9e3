// A rehearsal records the collectives of a program without running them.
#include "dist/rehearsal.h"

#include <gtest/gtest.h>

#include "dist/gradient_reducer.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

using Kind = RehearsedEvent::Kind;

TEST(Rehearsal, WritesDownWhatIsIssuedAndWaitedFor) {
  Rehearsal rehearsal;
  const auto rows = rehearsal.MakeGroup(1, 4, "rows_2");
  rehearsal.Compute(7);
  float sent[2] = {1, 2}, all[8] = {3, 3, 3, 3, 3, 3, 3, 3};
  Work first = rows->AllGather(Ref(sent, 2), Ref(all, 8), {"state", 0}, nullptr);
  Work second =
      rows->SendRecv(Ref(sent, 2), 2, TensorRef{.dtype = DType::kF32}, -1, {"tail", 0}, nullptr);
  second.WaitOn(nullptr);
  second.WaitHost();  // Not recorded again: the program has already waited here.
  first.WaitHost();
  EXPECT_EQ(rehearsal.operations(), (std::vector<RehearsedOperation>{{.group = "rows_2",
                                                                      .group_size = 4,
                                                                      .kind = OpKind::kAllGather,
                                                                      .what = "state",
                                                                      .bytes = 32},
                                                                     {.group = "rows_2",
                                                                      .group_size = 4,
                                                                      .kind = OpKind::kSendRecv,
                                                                      .what = "tail",
                                                                      .bytes = 8}}));
  std::vector<std::pair<Kind, int64_t>> events;
  for (const RehearsedEvent& event : rehearsal.events())
    events.emplace_back(event.kind, event.value);
  EXPECT_EQ(events, (std::vector<std::pair<Kind, int64_t>>{{Kind::kCompute, 7},
                                                           {Kind::kIssue, 0},
                                                           {Kind::kIssue, 1},
                                                           {Kind::kWait, 1},
                                                           {Kind::kWait, 0}}));
  for (const float x : all) EXPECT_EQ(x, 0);
}

// The reducer of a run, for gradients without memory.
TEST(Rehearsal, ReducesWithoutMemory) {
  const ParameterLayout layout(
      {{.name = "a", .shape = {100}, .aliases = {}}, {.name = "b", .shape = {3000}, .aliases = {}}},
      {.first_bucket_bytes = 4096, .bucket_bytes = 4096, .num_slices = 8});
  Rehearsal rehearsal;
  const auto world = rehearsal.MakeGroup(3, 8, "world");
  GradientReducer reducer(layout, *world, {.count = layout.num_elements()}, ReducedTo::kSlices);
  reducer.BeginStep(nullptr);
  reducer.MarkReady(0);
  EXPECT_TRUE(rehearsal.operations().empty()) << "b's bucket comes first";
  reducer.MarkReady(1);
  reducer.Finish();
  ASSERT_EQ(rehearsal.operations().size(), 2u);
  EXPECT_EQ(rehearsal.operations()[0].bytes, 4 * layout.buckets()[0].end);
  EXPECT_EQ(rehearsal.operations()[1].kind, OpKind::kReduceScatter);
}

TEST(Rehearsal, RefusesWhatItCannotKnow) {
  Rehearsal rehearsal;
  const auto world = rehearsal.MakeGroup(0, 8, "world");
  EXPECT_HL_ERROR(world->Split(0, 0, "half"), ExitCode::kInternal, "'half'", "MakeGroup");
  float wrong[3] = {};
  EXPECT_HL_ERROR(world->AllGather(Ref(wrong, 1), Ref(wrong, 3), {"x", 0}, nullptr),
                  ExitCode::kInternal, "out has 3 elements");
}

}  // namespace
}  // namespace halflife::dist
