// The MPI communicator gives the same bits as rank threads, makes progress during computation, and
// reports late ranks.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <thread>

#include "core/clock.h"
#include "dist/collective_cases.h"
#include "dist/local_communicator.h"
#include "dist/mpi_engine.h"
#include "dist/rank_context.h"
#include "support/expect_error.h"
#include "support/mpi_main.h"

namespace halflife::dist {
namespace {

RankContext* context = nullptr;  // GoogleTest cannot pass it to a test.

// Results of the same operations on threads, by rank and case.
using Results = std::vector<std::vector<std::vector<uint8_t>>>;
Results RunLocally(const std::vector<test::CollectiveCase>& cases, int size) {
  Results results(size);
  LocalWorld::Run(size, [&](Communicator& comm) {
    for (size_t i = 0; i < cases.size(); ++i) {
      results[comm.rank()].push_back(test::Run(cases[i], comm, static_cast<int>(i)));
    }
  });
  return results;
}

void ExpectAsLocally(const std::vector<test::CollectiveCase>& cases, Communicator& comm) {
  const Results local = RunLocally(cases, comm.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(test::Run(cases[i], comm, static_cast<int>(i)) == local[comm.rank()][i])
        << ToString(cases[i]) << " on rank " << comm.rank();
  }
}

TEST(MpiCommunicator, EveryOperationEqualsLocalBitForBit) {
  ExpectAsLocally(test::AllCases(), context->world());
}

TEST(MpiCommunicator, LargePayloadsEqualLocalBitForBit) {
  std::vector<test::CollectiveCase> cases;
  // 10 MB of fp32, an odd count: three segments and uneven slices.
  constexpr int64_t kCount = 2'621'443;
  const int64_t part = kCount / context->world_size();
  for (const OpKind kind :
       {OpKind::kReduceScatter, OpKind::kAllGatherV, OpKind::kAllToAll, OpKind::kAllToAllV}) {
    cases.push_back({kind, DType::kF32, ReduceOp::kSum, part});
  }
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kBroadcast, OpKind::kSendRecv}) {
    cases.push_back({kind, DType::kBF16, ReduceOp::kSum, kCount});
  }
  cases.push_back({OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, kCount});
  ExpectAsLocally(cases, context->world());
}

TEST(MpiCommunicator, ProgressesWhileTheMainThreadComputes) {
  std::vector<float> x(4'000'000, 1.0f);
  Work work = context->world().AllReduce(Ref(x.data(), static_cast<int64_t>(x.size())),
                                         ReduceOp::kSum, {"overlap", 0}, nullptr);
  // The main thread calls only Done, which does not wait.
  const Stopwatch stopwatch;
  while (!work.Done() && stopwatch.Seconds() < 60) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(work.Done());
  work.WaitHost();
  EXPECT_EQ(x[0], context->world_size());
  EXPECT_EQ(x.back(), context->world_size());
}

TEST(MpiCommunicator, ManyOperationsInFlightOnTwoGroups) {
  Communicator& world = context->world();
  const std::unique_ptr<Communicator> other = world.Split(0, -world.rank(), "reversed");
  ASSERT_EQ(other->rank(), world.size() - 1 - world.rank());
  constexpr int kOperations = 40;
  std::vector<std::vector<double>> buffers;
  for (int i = 0; i < kOperations; ++i) buffers.emplace_back(1 + i * 997, world.rank() + i);
  std::vector<Work> works;
  for (int i = 0; i < kOperations; ++i) {
    // The ranks interleave the two groups differently. The order within each group is the same.
    const int shifted = world.rank() % 2 == 0 ? i : i ^ 1;
    Communicator& comm = shifted % 2 == 0 ? world : *other;
    works.push_back(
        comm.AllReduce(Ref(buffers[shifted].data(), static_cast<int64_t>(buffers[shifted].size())),
                       ReduceOp::kSum, {"many", shifted}, nullptr));
  }
  for (Work& work : works) work.WaitHost();
  const int size = world.size();
  for (int i = 0; i < kOperations; ++i) {
    // Small integers, so the sum is exact.
    const double expected = size * (size - 1) / 2 + size * i;
    EXPECT_EQ(buffers[i].front(), expected);
    EXPECT_EQ(buffers[i].back(), expected);
  }
}

TEST(MpiCommunicator, SplitMakesSeparateGroups) {
  Communicator& world = context->world();
  const std::unique_ptr<Communicator> half = world.Split(world.rank() % 2, world.rank(), "half");
  EXPECT_EQ(half->size(), world.size() / 2);
  EXPECT_EQ(half->WorldRank(half->rank()), world.rank());
  int64_t x = world.rank();
  half->AllReduce(Ref(&x, 1), ReduceOp::kMax, {"half", 0}, nullptr).WaitHost();
  EXPECT_EQ(x, world.size() - 2 + world.rank() % 2);
  const std::unique_ptr<Communicator> some = world.Split(world.rank() == 0 ? -1 : 0, 0, "some");
  EXPECT_EQ(some == nullptr, world.rank() == 0);
}

// The group has the last two ranks. The error must name them by their numbers in the world.
TEST(MpiCommunicator, ATimeoutInAGroupNamesRanksOfTheWorld) {
  const int rank = context->rank(), size = context->world_size();
  MpiEngine engine(1);
  const MpiEngine::Group pair =
      engine.Split(engine.world(0).id, rank >= size - 2 ? 0 : -1, rank, 60);
  if (rank == size - 2) {
    const auto group = MakeMpiCommunicator(engine, pair, "pair", {.timeout_s = 0.3});
    EXPECT_HL_ERROR(group->Barrier({"met", 0}).WaitHost(), ExitCode::kTimeout,
                    "nothing came from rank " + std::to_string(size - 1));
  }
  context->control().Barrier({"after", 0}).WaitHost();
}

// The engines of the waiting ranks are in a blocking call and cannot be interrupted before it
// returns.
TEST(MpiCommunicator, ASplitThatCompletesBeforeItCouldBeGivenUpGoesOn) {
  MpiEngine engine(1);
  const int rank = context->rank();
  const auto hasty = MakeMpiCommunicator(engine, engine.world(0), "hasty", {.timeout_s = 0.5});
  const auto patient = MakeMpiCommunicator(engine, engine.world(0), "patient", {.timeout_s = 60});
  if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const std::unique_ptr<Communicator> group = hasty->Split(0, -rank, "late");
  EXPECT_EQ(group->rank(), context->world_size() - 1 - rank);
  patient->Barrier({"after", 0}).WaitHost();
}

// Odd processes have two ranks, the others one. Runs every operation within and between processes,
// in the world, in halves that split processes, and in the world in reverse order.
TEST(MpiCommunicator, ProcessesOfSeveralRanksEqualLocalBitForBit) {
  const std::vector<test::CollectiveCase> cases = test::AllCases();
  const int processes = context->world_size(), ranks_here = 1 + context->rank() % 2;
  const int size = processes + processes / 2;
  std::map<int, Results> local;  // By size of the group.
  for (const int of_group : {size, (size + 1) / 2, size / 2})
    local.try_emplace(of_group, RunLocally(cases, of_group));
  MpiEngine engine(ranks_here);
  const auto rank_main = [&](int rank_in_process) {
    const auto world = MakeMpiCommunicator(engine, engine.world(rank_in_process), "world", {});
    ASSERT_EQ(world->size(), size);
    const int rank = world->rank();
    const auto half = world->Split(rank % 2, rank, "half");
    const auto reversed = world->Split(0, -rank, "reversed");
    const auto some = world->Split(rank == 0 ? -1 : 0, 0, "some");
    EXPECT_EQ(some == nullptr, rank == 0);
    EXPECT_EQ(reversed->rank(), size - 1 - rank);
    for (Communicator* const comm : {world.get(), half.get(), reversed.get()}) {
      for (size_t i = 0; i < cases.size(); ++i) {
        EXPECT_EQ(test::Run(cases[i], *comm, static_cast<int>(i)),
                  local.at(comm->size())[comm->rank()][i])
            << ToString(cases[i]) << " in " << comm->name();
      }
    }
    EXPECT_HL_ERROR(half->Split(0, 0, "quarter"), ExitCode::kInternal,
                    "Split a group of all ranks.");
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks_here; ++rank) threads.emplace_back(rank_main, rank);
  rank_main(0);
  for (std::thread& thread : threads) thread.join();
}

TEST(MpiCommunicator, BytesTravel) {
  Communicator& control = context->control();
  const std::string mine(100 * control.rank(), 'x');
  const std::vector<std::string> all = AllGatherBytes(control, mine, {"bytes", 0});
  for (int r = 0; r < control.size(); ++r) EXPECT_EQ(all[r].size(), 100u * r);
  EXPECT_EQ(BroadcastBytes(control, control.rank() == 1 ? "word" : "", 1, {"bytes", 1}), "word");
}

TEST(MpiRankContext, KnowsItsPlace) {
  const LauncherEvidence evidence = ReadLauncherEvidence();
  EXPECT_TRUE(evidence.launched);
  EXPECT_EQ(evidence.rank, context->rank());
  EXPECT_EQ(evidence.world_size, context->world_size());
  EXPECT_EQ(context->local_size(), context->world_size()) << "one host";
  EXPECT_EQ(context->local_rank(), context->rank());
  EXPECT_FALSE(context->host().empty());
  context->RequireSameConfig("the same everywhere");
}

// Prints the host time of a step's packed scalars. It is informative and has no limit.
TEST(MpiCommunicator, SmallAllReduceLatency) {
  double x[24] = {};
  const Stopwatch stopwatch;
  constexpr int kRounds = 200;
  for (int i = 0; i < kRounds; ++i) {
    context->world().AllReduce(Ref(x, 24), ReduceOp::kSum, {"latency", i}, nullptr).WaitHost();
  }
  if (context->rank() == 0) {
    std::cout << "all-reduce of 24 doubles: " << stopwatch.Seconds() / kRounds * 1e3 << " ms\n";
  }
  std::vector<float> large(8 << 20, 1.0f);  // 32 MiB
  const Stopwatch large_stopwatch;
  context->world()
      .AllReduce(Ref(large.data(), 8 << 20), ReduceOp::kSum, {"large", 0}, nullptr)
      .WaitHost();
  EXPECT_EQ(large[1234567], context->world_size());
  if (context->rank() == 0) {
    std::cout << "all-reduce of 32 MiB: " << large_stopwatch.Seconds() * 1e3 << " ms\n";
  }
}

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::unique_ptr<RankContext> owned = RankContext::Create({.timeout_s = 60});
  context = owned.get();
  halflife::test::RequireRanks(*context, argc, argv);
  return halflife::test::RunTestsOnAllRanks(*context);
}

}  // namespace
}  // namespace halflife::dist

int main(int argc, char** argv) { return halflife::dist::Main(argc, argv); }
