// The verdicts of a watchdog as a table, and the thread that acts on them.
#include "dist/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "core/clock.h"
#include "support/temp_dir.h"

namespace halflife::dist {
namespace {

using testing::HasSubstr;
using Kind = CommFailure::Kind;

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kNow = 1'000'000 * kSecond;

// Returns a rank in its tenth step in which every part is healthy.
WatchSnapshot Healthy() {
  return {.now_us = kNow,
          .heads = {{"all_reduce 'grad_bucket' 7 (group world, seq 12)", kNow - 2 * kSecond,
                     kNow - kSecond}},
          .device = {.poller_us = kNow - kSecond},
          .phase = {.name = "backward",
                    .since_us = kNow - kSecond,
                    .step = 10,
                    .num_steps = 10,
                    .longest_s = 2}};
}

struct Row {
  const char* what;
  std::function<void(WatchSnapshot&)> change;
  std::optional<Kind> kind;  // none: no verdict
  const char* text = "";
};

// Every limit is tested just below and just above.
TEST(Watchdog, JudgesByTheTable) {
  const auto head = [](int64_t issued_s, int64_t ready_s) {
    return [=](WatchSnapshot& snapshot) {
      snapshot.heads[0].issued_us = kNow - issued_s * kSecond;
      snapshot.heads[0].ready_us = ready_s < 0 ? 0 : kNow - ready_s * kSecond;
    };
  };
  const auto phase = [](const char* name, int64_t seconds, double longest_s = 2) {
    return [=](WatchSnapshot& snapshot) {
      snapshot.phase.name = name;
      snapshot.phase.since_us = kNow - seconds * kSecond;
      snapshot.phase.longest_s = longest_s;
    };
  };
  const auto call = [](int64_t seconds, double limit_s) {
    return [=](WatchSnapshot& snapshot) {
      snapshot.device.call = "NCCL rendezvous of group rows_1";
      snapshot.device.call_since_us = kNow - seconds * kSecond;
      snapshot.device.call_limit_s = limit_s;
    };
  };
  const std::vector<Row> rows = {
      {"healthy", [](WatchSnapshot&) {}, std::nullopt},
      {"no operation", [](WatchSnapshot& x) { x.heads.clear(); }, std::nullopt},
      {"ready for less than the timeout", head(500, 179), std::nullopt},
      {"ready for longer", head(500, 181), Kind::kTimeout,
       "all_reduce 'grad_bucket' 7 (group world, seq 12) has waited 3 min 01 s for other ranks"},
      {"the late rank has time",
       [&](WatchSnapshot& x) { head(500, 181)(x), x.late_rank_has_time = true; }, std::nullopt},
      {"not ready for less than four timeouts", head(719, -1), std::nullopt},
      {"not ready for longer", head(721, -1), Kind::kTimeout, "this rank's GPU has not come to it"},
      {"the second group's head",
       [](WatchSnapshot& x) {
         x.heads.push_back({"send_recv 'state' 3", 1, kNow - 200 * kSecond});
       },
       Kind::kTimeout, "send_recv 'state' 3 has waited"},
      {"a call within its limit", call(599, 600), std::nullopt},
      {"a call beyond it", call(601, 600), Kind::kTimeout,
       "NCCL rendezvous of group rows_1 has not returned for 10 min"},
      {"a poller that is late", [](WatchSnapshot& x) { x.device.poller_us = kNow - 29 * kSecond; },
       std::nullopt},
      {"a poller that is stuck", [](WatchSnapshot& x) { x.device.poller_us = kNow - 31 * kSecond; },
       Kind::kTimeout, "the GPU's driver has not answered"},
      {"no poller yet", [](WatchSnapshot& x) { x.device.poller_us = 0; }, std::nullopt},
      {"a lost peer",
       [](WatchSnapshot& x) {
         x.device.failure = CommFailure{Kind::kPeerLost, "gone"};
       },
       Kind::kPeerLost, "gone"},
      {"an error comes before a timeout",
       [&](WatchSnapshot& x) {
         head(500, 400)(x);
         x.device.failure = CommFailure{Kind::kLibrary, "Xid"};
       },
       Kind::kLibrary, "Xid"},
      {"backward within its limit", phase("backward", 359), std::nullopt},
      {"backward beyond it", phase("backward", 361), Kind::kTimeout,
       "phase backward of step 10 has taken 6 min 01 s"},
      {"a slow model", phase("backward", 361, 40), std::nullopt},
      {"a slow model that is stuck", phase("backward", 401, 40), Kind::kTimeout},
      {"data within its limit", phase("data", 599), std::nullopt},
      {"data beyond it", phase("data", 601), Kind::kTimeout, "phase data"},
      {"a save beyond its limit", phase("save", 3601), Kind::kTimeout, "phase save"},
      {"validation has none", phase("validate", 100'000), std::nullopt},
      {"the first steps have more time",
       [&](WatchSnapshot& x) { head(500, 400)(x), x.phase.num_steps = 3; }, std::nullopt},
      {"but not for ever", [&](WatchSnapshot& x) { head(1000, 901)(x), x.phase.num_steps = 3; },
       Kind::kTimeout},
  };
  for (const Row& row : rows) {
    WatchSnapshot snapshot = Healthy();
    row.change(snapshot);
    const std::optional<CommFailure> verdict = Judge(snapshot, {});
    ASSERT_EQ(verdict.has_value(), row.kind.has_value()) << row.what;
    if (!verdict) continue;
    EXPECT_EQ(verdict->kind, *row.kind) << row.what;
    EXPECT_THAT(verdict->text, HasSubstr(row.text)) << row.what;
  }
}

TEST(Watchdog, HasNoLimitsWithoutATimeout) {
  WatchSnapshot snapshot = Healthy();
  snapshot.heads[0].ready_us = 1;
  snapshot.phase.since_us = 1;
  const WatchLimits none = {.timeout_s = std::numeric_limits<double>::infinity()};
  EXPECT_FALSE(Judge(snapshot, none));
  snapshot.device.failure = CommFailure{Kind::kPeerLost, "gone"};
  EXPECT_TRUE(Judge(snapshot, none));
}

// If the clock is set, a healthy rank goes on, and a rank that is stuck is found a timeout later.
TEST(Watchdog, CountsWaitsFromTheLastJumpOfTheClock) {
  for (const int64_t set_s : {-3600, 3600}) {
    SCOPED_TRACE(set_s);
    ClockJump jump(ClockJump::Clocks{.steady_us = 0, .unix_us = kNow});
    EXPECT_FALSE(jump.Update({.steady_us = kSecond, .unix_us = kNow + 2 * kSecond}));
    WatchSnapshot never_set = Healthy();
    never_set.heads[0].ready_us = kNow - 181 * kSecond;
    jump.Correct(never_set);
    EXPECT_TRUE(Judge(never_set, {})) << "without a jump the times hold";

    const int64_t jump_us = kNow + set_s * kSecond;
    EXPECT_TRUE(jump.Update({.steady_us = 2 * kSecond, .unix_us = jump_us}));
    EXPECT_FALSE(jump.Update({.steady_us = 3 * kSecond, .unix_us = jump_us + kSecond}));
    EXPECT_EQ(jump.at_us(), jump_us);
    const auto verdict_after = [&](int64_t seconds, WatchSnapshot snapshot) {
      snapshot.now_us = jump_us + seconds * kSecond;
      jump.Correct(snapshot);
      return Judge(snapshot, {});
    };
    EXPECT_FALSE(verdict_after(0, Healthy()));
    EXPECT_FALSE(verdict_after(29, Healthy()));
    EXPECT_TRUE(verdict_after(31, Healthy())) << "the poller";
    WatchSnapshot waits = Healthy();
    waits.device.poller_us = 0;  // There is none, also after a jump.
    EXPECT_FALSE(verdict_after(179, waits));
    ASSERT_TRUE(verdict_after(181, waits));
    EXPECT_THAT(verdict_after(181, waits)->text, HasSubstr("has waited 3 min 01 s for other"));
    waits.heads[0].ready_us = 0;
    EXPECT_FALSE(verdict_after(181, waits)) << "an operation that is not ready";
    waits.heads.clear();
    EXPECT_FALSE(verdict_after(359, waits));
    EXPECT_TRUE(verdict_after(361, waits)) << "the phase";
    WatchSnapshot later = waits;  // A step of the clock that is no jump changes nothing.
    later.phase.since_us = jump_us + 1001 * kSecond;
    EXPECT_FALSE(verdict_after(1000, later));
  }
}

Request Sum(int index) { return {.kind = OpKind::kAllReduce, .tag = {"grad_bucket", index}}; }

// An operation on a GPU is late from the moment at which it is ready.
TEST(Watchdog, CallsOnceForALateOperation) {
  FlightRecorder flight(0, 2);
  flight.EnterPhase("backward", 5);
  const uint64_t first = flight.Begin("world", 2, Sum(0), 0, /*on_device=*/true);
  const uint64_t second = flight.Begin("world", 2, Sum(1), 1, /*on_device=*/true);
  ASSERT_EQ(flight.DeviceHeads().size(), 1u);
  EXPECT_THAT(flight.DeviceHeads()[0].text, HasSubstr("'grad_bucket' 0 (group world, seq 0)"));
  EXPECT_EQ(flight.DeviceHeads()[0].ready_us, 0);
  std::atomic<int> calls = 0;
  std::string text;
  {
    const Watchdog watchdog(flight, std::make_shared<DeviceWatch>(),
                            {.timeout_s = 0.1, .num_first_steps = 0, .interval_s = 0.01},
                            [&](const CommFailure& failure) {
                              text = failure.text;
                              ++calls;
                            });
    flight.Ready(first);
    flight.End(first, OpState::kDone);
    flight.Ready(second);
    for (int tries = 0; tries < 500 && calls == 0; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(text, HasSubstr("'grad_bucket' 1 (group world, seq 1) has waited"));
}

// A rank that is alive and loads data has as long as this phase may take.
TEST(Watchdog, WaitsForARankThatLoadsData) {
  const test::TempDir dir;
  FlightRecorder waits(0, 2), loads(1, 2);
  waits.KeepIn(dir.path() / "flight", "a");
  loads.KeepIn(dir.path() / "flight", "a");
  for (FlightRecorder* const flight : {&waits, &loads})
    flight->End(flight->Begin("world", 2, Sum(0), 0, true), OpState::kDone);
  waits.Ready(waits.Begin("world", 2, Sum(1), 1, true));
  const int64_t later_us = UnixMicroseconds() + 4 * kSecond;
  loads.EnterPhase("data", 5);
  EXPECT_TRUE(LateRankHasTime(dir.path() / "flight", {}, later_us));
  EXPECT_FALSE(LateRankHasTime(dir.path() / "flight", {.data_s = 3}, later_us));
  EXPECT_TRUE(
      LateRankHasTime(dir.path() / "flight", {.data_s = 3}, later_us, later_us - 2 * kSecond));
  loads.EnterPhase("backward", 5);
  EXPECT_FALSE(LateRankHasTime(dir.path() / "flight", {}, later_us));
}

}  // namespace
}  // namespace halflife::dist
