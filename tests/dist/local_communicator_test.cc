// Rank threads: every collective equals its definition bit for bit, and failures, late ranks and
// mismatches end the world with a precise error.
#include "dist/local_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "core/clock.h"
#include "dist/collective_cases.h"
#include "support/address_limit.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using Kind = CommFailure::Kind;
using Fault = LocalFault::Kind;

Work Sum(Communicator& comm, float* x, int64_t count, int index) {
  return comm.AllReduce(Ref(x, count), ReduceOp::kSum, {"sum", index}, nullptr);
}

TEST(LocalCommunicator, EveryOperationIsItsDefinitionBitForBit) {
  const std::vector<test::CollectiveCase> cases = test::AllCases();
  for (const int size : {1, 2, 3, 4, 8}) {
    LocalWorld::Run(size, [&](Communicator& comm) {
      for (size_t i = 0; i < cases.size(); ++i) {
        const int index = static_cast<int>(i);
        EXPECT_EQ(test::Run(cases[i], comm, index),
                  test::Expected(cases[i], comm.rank(), size, index))
            << ToString(cases[i]) << " on rank " << comm.rank() << " of " << size;
      }
    });
  }
}

// Only some of the 16 ranks get a thread, because stacks of 8 MiB do not fit. These wait for the
// others.
TEST(LocalCommunicator, ARankWithoutAThreadEndsTheWorld) {
  const auto meet = [] {
    LocalWorld::Run(16, [](Communicator& comm) { comm.Barrier({"all", 0}).WaitHost(); });
  };
  EXPECT_EXIT(halflife::test::ExitUnderAddressLimit(32 << 20, meet),
              testing::ExitedWithCode(static_cast<int>(ExitCode::kEnvironment)),
              "cannot start a thread");
}

TEST(LocalCommunicator, SchedulesChangeNothingButTime) {
  const std::vector<test::CollectiveCase> cases = test::AllCases();
  for (uint64_t seed = 0; seed < 32; ++seed) {
    const auto rank_main = [&](Communicator& world) {
      const std::unique_ptr<Communicator> half =
          world.Split(world.rank() % 2, -world.rank(), "half");
      for (size_t i = seed; i < cases.size(); i += 32) {
        const int index = static_cast<int>(i);
        float x = 1;  // In flight on the other group.
        Work other = Sum(*half, &x, 1, index);
        EXPECT_EQ(test::Run(cases[i], world, index),
                  test::Expected(cases[i], world.rank(), 4, index))
            << ToString(cases[i]) << " seed " << seed;
        other.WaitHost();
        EXPECT_EQ(x, 2);
      }
    };
    LocalWorld::Run(4, rank_main, {.schedule = LocalSchedule{.seed = seed, .max_delay_s = 1e-4}});
  }
}

TEST(LocalCommunicator, ABadValueSurvivesMaxAndMin) {
  for (const int bad_rank : {0, 1, 2}) {
    LocalWorld::Run(3, [&](Communicator& comm) {
      float x[2] = {comm.rank() == bad_rank ? NAN : 1.0f, 1.0f};
      comm.AllReduce(Ref(x, 2), ReduceOp::kMax, {"max", 0}, nullptr).WaitHost();
      EXPECT_TRUE(std::isnan(x[0]));
      EXPECT_EQ(x[1], 1.0f);
    });
  }
}

TEST(LocalCommunicator, DataMovesOnlyWhenTheOperationCompletes) {
  // Completions are delayed, so a read before the wait sees the old value and reveals a race.
  std::atomic<int> early{0};
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto rank_main = [&](Communicator& comm) {
      float x = 1;
      Work work = Sum(comm, &x, 1, 0);
      if (!work.Done()) ++early;
      work.WaitHost();
      EXPECT_TRUE(work.Done());
      EXPECT_EQ(x, 2);
    };
    LocalWorld::Run(2, rank_main, {.schedule = LocalSchedule{.seed = seed, .max_delay_s = 0.005}});
  }
  EXPECT_GT(early, 8) << "16 operations, delays of 2.5 ms on average: most are still open";
}

TEST(LocalCommunicator, OperationsOverlapAcrossGroupsIssuedInDifferentOrders) {
  LocalWorld::Run(2, [](Communicator& world) {
    const std::unique_ptr<Communicator> a = world.Split(0, world.rank(), "a");
    const std::unique_ptr<Communicator> b = world.Split(0, world.rank(), "b");
    float x = 1, y = 2;
    Work first = world.rank() == 0 ? Sum(*a, &x, 1, 0) : Sum(*b, &y, 1, 0);
    Work second = world.rank() == 0 ? Sum(*b, &y, 1, 0) : Sum(*a, &x, 1, 0);
    first.WaitHost();
    second.WaitHost();
    EXPECT_EQ(x, 2);
    EXPECT_EQ(y, 4);
  });
}

TEST(LocalCommunicator, SplitOrdersByKeyAndLeavesNegativeColorsOut) {
  LocalWorld::Run(5, [](Communicator& world) {
    const int color = world.rank() == 4 ? -1 : world.rank() / 2;
    const std::unique_ptr<Communicator> pair = world.Split(color, -world.rank(), "pair");
    if (color < 0) {
      EXPECT_EQ(pair, nullptr);
      return;
    }
    EXPECT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), world.rank() % 2 == 0 ? 1 : 0);
    EXPECT_EQ(pair->WorldRank(pair->rank()), world.rank());
    EXPECT_EQ(pair->name(), "pair");
    const std::vector<std::string> all =
        AllGatherBytes(*pair, std::string(world.rank(), 'x'), {"names", 0});
    EXPECT_EQ(all[pair->rank()], std::string(world.rank(), 'x'));
    const std::unique_ptr<Communicator> alone = pair->Split(pair->rank(), 0, "alone");
    EXPECT_EQ(alone->size(), 1);
    float x = 3;
    Sum(*alone, &x, 1, 0).WaitHost();
    EXPECT_EQ(x, 3);
  });
}

// Runs a world whose ranks sum three times, with one fault. Returns the failure and the seconds
// until it.
struct Outcome {
  std::optional<Kind> kind;  // Empty: an Error of another type.
  std::string text;
  double seconds = 0;
};
Outcome RunWithFault(LocalFault fault, double timeout_s = 0.3) {
  const Stopwatch stopwatch;
  Outcome outcome;
  try {
    const auto rank_main = [](Communicator& comm) {
      for (int i = 0; i < 3; ++i) {
        float x[4] = {1, 1, 1, 1};
        Sum(comm, x, 4, i).WaitHost();
      }
    };
    LocalWorld::Run(4, rank_main, {.timeout_s = timeout_s, .faults = {std::move(fault)}});
    outcome.text = "no failure";
  } catch (const CommError& error) {
    outcome = {error.kind(), error.what(), 0};
  } catch (const Error& error) {
    outcome = {std::nullopt, error.what(), 0};
  }
  outcome.seconds = stopwatch.Seconds();
  return outcome;
}

TEST(LocalFaults, AThrowingRankIsTheCauseAndEndsTheOthersAtOnce) {
  const Outcome outcome = RunWithFault({Fault::kThrow, 2, "sum", 2}, 30);
  EXPECT_FALSE(outcome.kind.has_value());
  EXPECT_THAT(outcome.text, HasSubstr("injected: rank 2 at sum 1"));
  EXPECT_LT(outcome.seconds, 5) << "long before the deadline of 30 s";
}

TEST(LocalFaults, AHangingRankIsNamedAtTheDeadline) {
  const Outcome outcome = RunWithFault({Fault::kHang, 1, "sum", 2});
  EXPECT_EQ(outcome.kind, Kind::kTimeout);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 1 has not issued it"),
                                  HasSubstr("all_reduce 'sum' 1 (group world, seq 1, 16 B fp32)")));
  EXPECT_GE(outcome.seconds, 0.3);
  EXPECT_LT(outcome.seconds, 5);
}

TEST(LocalFaults, WithoutADeadlineALateRankIsWaitedFor) {
  const auto rank_main = [](Communicator& comm) {
    float x = 1;
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Sum(comm, &x, 1, 0).WaitHost();
    EXPECT_EQ(x, 2);
  };
  for (const double seconds : {std::numeric_limits<double>::infinity(), 9.3e9})
    EXPECT_NO_THROW(LocalWorld::Run(2, rank_main, {.timeout_s = seconds})) << seconds;
}

TEST(LocalFaults, AVanishedRankIsAPeerLost) {
  const Outcome outcome = RunWithFault({Fault::kDisappear, 3, "sum", 3}, 30);
  EXPECT_EQ(outcome.kind, Kind::kPeerLost);
  EXPECT_THAT(outcome.text, HasSubstr("rank 3 is gone"));
  EXPECT_LT(outcome.seconds, 5);
}

TEST(LocalFaults, AWrongCountIsADesync) {
  const Outcome outcome = RunWithFault({Fault::kWrongCount, 0, "sum", 1}, 30);
  EXPECT_EQ(outcome.kind, Kind::kDesync);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 0"), AnyOf(HasSubstr("count 5 against 4"),
                                                             HasSubstr("count 4 against 5"))));
}

TEST(LocalFaults, ADuplicateIsADesync) {
  const Outcome outcome = RunWithFault({Fault::kDuplicate, 1, "sum", 1}, 30);
  EXPECT_EQ(outcome.kind, Kind::kDesync);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank 1"), HasSubstr("tag 'sum'")));
}

TEST(LocalFaults, ADuplicateOfTheLastOperationIsADesyncToo) {
  const Outcome outcome = RunWithFault({Fault::kDuplicate, 1, "sum", 3}, 30);
  EXPECT_THAT(outcome.kind, AnyOf(Kind::kDesync, Kind::kPeerLost));
  EXPECT_THAT(outcome.text, HasSubstr("rank 1"));
}

TEST(LocalFaults, PayloadsAreDamagedInOnePlace) {
  const auto run = [](Fault kind) {
    const auto rank_main = [&](Communicator& comm) {
      float x[5] = {1, 1, 1, 1, 1};
      Sum(comm, x, 5, 0).WaitHost();
      for (int i = 0; i < 5; ++i) {
        if (i != 2) {
          EXPECT_EQ(x[i], 2);
        }
      }
      EXPECT_NE(x[2], 2) << "NaN or the flipped bit";
      EXPECT_EQ(std::isnan(x[2]), kind == Fault::kNan);
    };
    LocalWorld::Run(2, rank_main, {.faults = {{kind, 1, "sum", 1}}});
  };
  run(Fault::kNan);
  run(Fault::kBitFlip);
}

TEST(LocalCommunicator, DifferentOperationsAreADesyncNamingBoth) {
  EXPECT_HL_ERROR(
      LocalWorld::Run(2,
                      [](Communicator& comm) {
                        float x = 1;
                        const OpTag tag = {comm.rank() == 0 ? "loss" : "norm", 4};
                        comm.AllReduce(Ref(&x, 1), ReduceOp::kSum, tag, nullptr).WaitHost();
                      }),
      ExitCode::kInternal, "desync", "rank 0", "rank 1", "'loss' 4", "'norm' 4");
}

TEST(LocalCommunicator, CountsThatRanksDoNotShareAreADesync) {
  EXPECT_HL_ERROR(
      LocalWorld::Run(2,
                      [](Communicator& comm) {
                        float x[4] = {};
                        const std::vector<int64_t> to = {1, 1}, from = {1 + comm.rank(), 1};
                        comm.AllToAllV(Ref(x, 2), Ref(x, from[0] + from[1]), to, from, {"parts", 0},
                                       nullptr)
                            .WaitHost();
                      }),
      ExitCode::kInternal, "rank 0 sends 1 elements to rank 1, which expects 2");
}

TEST(LocalCommunicator, UnpairedSendsAreADesync) {
  EXPECT_HL_ERROR(LocalWorld::Run(2,
                                  [](Communicator& comm) {
                                    float x[2] = {};
                                    comm.SendRecv(Ref(x, 1), comm.rank() == 0 ? 1 : -1,
                                                  Ref(x + 1, 1), -1, {"shift", 0}, nullptr)
                                        .WaitHost();
                                  }),
                  ExitCode::kInternal, "rank 0 sends to rank 1");
}

TEST(LocalCommunicator, ARankThatEndsEarlyIsLost) {
  EXPECT_HL_ERROR(LocalWorld::Run(3,
                                  [](Communicator& comm) {
                                    if (comm.rank() == 1) return;
                                    comm.Barrier({"end", 0}).WaitHost();
                                  }),
                  ExitCode::kPeerLost, "rank 1, which has ended", "barrier 'end' 0");
}

TEST(LocalCommunicator, AnExceptionWithOpenOperationsEndsTheWorldWithItsOwnWords) {
  // Rank 1 unwinds past an operation whose buffer is destroyed with the frame. No rank may access
  // the buffer or hang.
  EXPECT_HL_ERROR(LocalWorld::Run(3,
                                  [](Communicator& comm) {
                                    std::vector<float> x(1000, 1.0f);
                                    Work work = Sum(comm, x.data(), 1000, 0);
                                    HL_CHECK_AS(ExitCode::kData, comm.rank() != 1, "bad shard");
                                    comm.Barrier({"next", 0}).WaitHost();
                                  }),
                  ExitCode::kData, "bad shard");
}

TEST(LocalCommunicator, AbortEndsPendingAndLaterOperations) {
  LocalWorld::Run(2, [](Communicator& comm) {
    float x = 1;
    if (comm.rank() == 0) {
      Work work = Sum(comm, &x, 1, 0);
      comm.Abort("a test asked for it");
      comm.Abort("twice is fine");
      EXPECT_HL_ERROR(work.WaitHost(), ExitCode::kPeerLost, "a test asked for it");
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_HL_ERROR(Sum(comm, &x, 1, 1), ExitCode::kPeerLost, "a test asked for it");
  });
}

// A rank that polls must not wait for a rank that never arrives.
TEST(LocalCommunicator, AnOperationOfAFailedWorldIsOverForWhoPolls) {
  std::atomic<bool> issued = false;  // A failed world accepts no operations.
  LocalWorld::Run(2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      issued.wait(false);
      return comm.Abort("a test asked for it");
    }
    Work work = comm.Barrier({"polled", 0});
    issued = true;
    issued.notify_one();
    const Stopwatch watch;
    while (!work.Done() && watch.Seconds() < 60)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(work.Done());
    EXPECT_HL_ERROR(work.WaitHost(), ExitCode::kPeerLost, "a test asked for it");
  });
}

}  // namespace
}  // namespace halflife::dist
