// NCCL groups, gradient sums and parameter gathers with several ranks, on the fake GPUs of
// fake_gpu/world.h. The tests of the fake itself come first: a fake that finds nothing proves
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <thread>

#include "dist/collective_cases.h"
#include "dist/fake_gpu/nccl.h"
#include "dist/fake_gpu/world.h"
#include "dist/flight_recorder.h"
#include "dist/gradient_reducer.h"
#include "dist/nccl_communicator.h"
#include "dist/parameter_gather.h"
#include "dist/request.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

using fake::Outcome;
using fake::Rank;
using testing::HasSubstr;
using testing::IsEmpty;

std::unique_ptr<Communicator> MakeWorld(Rank& rank, const NcclOptions& options = {
                                                        .timeout_s = 20, .init_timeout_s = 20}) {
  return MakeNcclCommunicator(rank.control(), rank.device(), "world", options);
}

template <typename T>
TensorRef OnGpu(Rank& rank, std::vector<T>& values) {
  TensorRef ref = Ref(values.data(), static_cast<int64_t>(values.size()));
  ref.device = rank.device();
  return ref;
}

// Runs the ranks and rethrows the first error of a rank.
Outcome RunWell(const fake::Options& options, const std::function<void(Rank&)>& body) {
  if (testing::Test::HasFailure()) return {};  // further seeds would only repeat it
  const Outcome outcome = fake::Run(options, body);
  EXPECT_EQ(outcome.error_text, "") << "seed " << options.seed;
  EXPECT_FALSE(outcome.gave_up) << "seed " << options.seed;
  EXPECT_EQ(outcome.double_joins, 0) << "seed " << options.seed;
  EXPECT_EQ(outcome.unlike, 0) << "seed " << options.seed;
  return outcome;
}

// --- the fake itself ---

TEST(FakeGpu, StreamsRunInOrderAndEventsOrderThem) {
  RunWell({.ranks = 1}, [](Rank& rank) {
    const cudaStream_t first = rank.Stream(), second = rank.Stream();
    std::vector<int> order;
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDefault);
    rank.Compute(
        first, 100, [&] { order.push_back(0); }, 8);
    cudaEventRecord(event, first);
    cudaStreamWaitEvent(second, event, 0);
    cudaEventDestroy(event);  // while it is pending
    rank.Compute(
        second, 50, [&] { order.push_back(2); }, 8);
    rank.Compute(
        first, 10, [&] { order.push_back(1); }, 8);
    rank.Synchronize(second);
    rank.Synchronize(first);
    EXPECT_EQ(order[0], 0);
    EXPECT_NEAR(rank.host_us(), 160, 20);  // 100 + 50 after the launches
  });
}

// Without the event, the second stream's kernel comes first for some seeds.
TEST(FakeGpu, SeedsFindAMissingEvent) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 1000 && wrong == 0; ++seed) {
    RunWell({.ranks = 1, .seed = seed}, [&](Rank& rank) {
      const cudaStream_t writer = rank.Stream(), reader = rank.Stream();
      int value = 0, read = 0;
      rank.Compute(
          writer, 10, [&] { value = 1; }, 8);
      rank.Compute(
          reader, 10, [&] { read = value; }, 8);
      rank.Synchronize(writer);
      rank.Synchronize(reader);
      wrong += read == 0 ? 1 : 0;
    });
  }
  EXPECT_GT(wrong, 0);
}

TEST(FakeGpu, AFullQueueBlocksTheHost) {
  const Outcome outcome =
      fake::Run({.ranks = 1, .launch_queue = 4, .give_up_s = 0.2}, [](Rank& rank) {
        const cudaStream_t stream = rank.Stream();
        rank.ComputeForever(stream);
        for (int i = 0; i < 8; ++i) rank.Compute(stream, 1);
      });
  EXPECT_TRUE(outcome.gave_up);
}

// The memory of a tensor that is freed while a stream still reads it becomes NaN.
TEST(FakeGpu, FreedMemoryIsPoison) {
  RunWell({.ranks = 1}, [](Rank& rank) {
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, sizeof(float)), cudaSuccess);
    *static_cast<float*>(memory) = 3;
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
    float late = 0;
    rank.Compute(nullptr, 1, [&] { late = *static_cast<float*>(memory); });
    cudaDeviceSynchronize();
    EXPECT_TRUE(std::isnan(late));
  });
}

// --- collectives ---

// Every collective equals its definition. Each seed runs another part of the cases, so that all of
// them run twice with every number of ranks. --gtest_random_seed=K runs the K-th 16 seeds.
TEST(FakeNccl, CollectivesEqualTheirDefinitions) {
  const std::vector<test::CollectiveCase> cases = test::AllCases();
  constexpr uint64_t kSeeds = 16, kParts = 8;
  const uint64_t first = kSeeds * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed));
  for (const int ranks : {2, 3, 4, 8}) {
    for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
      RunWell({.ranks = ranks, .seed = seed}, [&](Rank& rank) {
        const auto comm = MakeWorld(rank);
        for (size_t i = seed % kParts; i < cases.size(); i += kParts) {
          const int index = static_cast<int>(i);
          ASSERT_EQ(test::Run(cases[i], *comm, index, rank.device()),
                    test::Expected(cases[i], rank.number(), ranks, index))
              << test::ToString(cases[i]) << ", seed " << seed << ", rank " << rank.number();
        }
      });
    }
  }
}

TEST(FakeNccl, TwoRanksShareAGpuOnlyWithTheSetting) {
  const fake::Options options = {.ranks = 2, .same_gpu = true};
  const auto body = [](Rank& rank) { MakeWorld(rank)->Barrier({"met", 0}).WaitHost(); };
  EXPECT_THAT(fake::Run(options, body).error_text,
              HasSubstr("ranks 0 and 1 share the GPU 0000:00:00.0 on "));
  EXPECT_THAT(fake::Run(options, body).error_text,
              HasSubstr("Start at most one rank per GPU. For a test of several ranks on one GPU, "
                        "set HALFLIFE_SHARE_GPU=1."));
  ::setenv("HALFLIFE_SHARE_GPU", "1", /*overwrite=*/1);
  RunWell(options, body);
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "lo");
  ::setenv("HALFLIFE_SHARE_GPU", "0", /*overwrite=*/1);
  EXPECT_THAT(fake::Run(options, body).error_text, HasSubstr("ranks 0 and 1 share the GPU"));
  ::unsetenv("HALFLIFE_SHARE_GPU");
}

// Several gathers in one group call, which costs the host as much as one.
TEST(FakeNccl, ABatchIsOneGroupCall) {
  constexpr int kCount = 10;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    RunWell({.ranks = 4, .seed = seed}, [&](Rank& rank) {
      const auto comm = MakeWorld(rank);
      comm->Barrier({"met", 0}).WaitHost();
      std::vector<std::vector<float>> all(kCount, std::vector<float>(4 * 8, -1));
      std::vector<Work> works;
      const int calls = rank.group_calls();
      const double before_us = rank.host_us();
      const cudaStream_t stream = rank.Stream();
      comm->Batch([&] {
        for (int i = 0; i < kCount; ++i) {
          const TensorRef whole = OnGpu(rank, all[i]), own = whole.Slice(8 * rank.number(), 8);
          rank.Compute(stream, 1, [&, i] {
            for (int j = 0; j < 8; ++j) all[i][8 * rank.number() + j] = i + 100 * rank.number();
          });
          works.push_back(comm->AllGather(own, whole, {"param_bucket", i}, stream));
        }
        EXPECT_HL_ERROR(works[0].Done(), ExitCode::kInternal, "a wait within the batch");
      });
      EXPECT_EQ(rank.group_calls() - calls, 1);
      EXPECT_LT(rank.host_us() - before_us, 15.0 * kCount);
      for (Work& work : works) work.WaitOn(stream);
      rank.Synchronize(stream);
      for (int i = 0; i < kCount; ++i)
        for (int j = 0; j < 4 * 8; ++j) ASSERT_EQ(all[i][j], i + 100 * (j / 8)) << "seed " << seed;
    });
  }
}

// A consumer that does not wait reads wrong values for some seed.
TEST(FakeNccl, SeedsFindAMissingWait) {
  for (const bool waits : {true, false}) {
    std::atomic<int> wrong = 0;
    for (uint64_t seed = 0; seed < (waits ? 10 : 1000) && wrong == 0; ++seed) {
      RunWell({.ranks = 2, .seed = seed}, [&](Rank& rank) {
        const auto comm = MakeWorld(rank);
        const cudaStream_t stream = rank.Stream();
        std::vector<float> x = {1};
        float read = 0;
        Work work = comm->AllReduce(OnGpu(rank, x), ReduceOp::kSum, {"x", 0}, stream);
        if (waits) work.WaitOn(stream);
        rank.Compute(stream, 1, [&] { read = x[0]; });
        rank.Synchronize(stream);
        work.WaitHost();
        if (read != 2) ++wrong;
      });
    }
    EXPECT_EQ(wrong == 0, waits);
  }
}

// A rank that issues two sums in another order is a hang on GPUs.
TEST(FakeNccl, AnotherOrderHangs) {
  const Outcome outcome = fake::Run({.ranks = 2, .give_up_s = 0.3}, [](Rank& rank) {
    const auto comm = MakeWorld(rank);
    std::vector<float> one(1), three(3);
    std::vector<TensorRef> sums = {OnGpu(rank, one), OnGpu(rank, three)};
    if (rank.number() == 1) std::swap(sums[0], sums[1]);
    std::vector<Work> works;
    for (const TensorRef& sum : sums)
      works.push_back(comm->AllReduce(sum, ReduceOp::kSum, {"bucket", 0}, nullptr));
    for (Work& work : works) work.WaitHost();
  });
  EXPECT_TRUE(outcome.gave_up);
  EXPECT_EQ(outcome.unlike, 1);
}

// --- groups of several roles ---

TEST(FakeNccl, GroupsWithoutOperationsCostNothing) {
  RunWell({.ranks = 4}, [](Rank& rank) {
    const auto comm = MakeWorld(rank);
    const auto rows = comm->Split(rank.number() / 2, rank.number(), "rows_x", GroupRole::kRows);
    const auto none = comm->Split(rank.number() < 2 ? 0 : -1, 0, "first", GroupRole::kRows);
    EXPECT_EQ(none == nullptr, rank.number() >= 2);
    EXPECT_EQ(rank.live_groups(), 0);
    std::vector<float> x = {static_cast<float>(rank.number())};
    rows->AllReduce(OnGpu(rank, x), ReduceOp::kSum, {"x", 0}, nullptr).WaitHost();
    EXPECT_EQ(x[0], rank.number() < 2 ? 1 : 5);
    EXPECT_EQ(rank.live_groups(), 1);
  });
}

// While compute fills the GPU, operations of all roles become ready. When thread blocks are free
// again, exchanges of rows start first, then parameters, then gradients, although they were issued
// in the opposite order.
// The first operation of a group connects all of its ranks, so a rank that exchanges nothing must
// take part.
TEST(FakeNccl, ARankWithoutDataJoinsTheFirstExchange) {
  const std::vector<int64_t> counts[] = {{1, 2, 0}, {2, 1, 0}, {0, 0, 0}};  // symmetric
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    RunWell({.ranks = 3, .seed = seed}, [&](Rank& rank) {
      const auto world = MakeWorld(rank);
      const std::vector<int64_t>& own = counts[rank.number()];
      const int64_t total = own[0] + own[1] + own[2];
      std::vector<float> in(static_cast<size_t>(total), static_cast<float>(rank.number())),
          out(in.size());
      world->AllToAllV(OnGpu(rank, in), OnGpu(rank, out), own, own, {"matrices", 0}, rank.Stream())
          .WaitHost();
      std::vector<float> want(static_cast<size_t>(own[0]), 0);
      want.insert(want.end(), static_cast<size_t>(own[1]), 1);
      EXPECT_EQ(out, want);
    });
  }
}

TEST(FakeNccl, RolesHavePriorities) {
  const Outcome outcome = RunWell({.ranks = 2, .launch_order = false}, [](Rank& rank) {
    const auto world = MakeWorld(rank);
    const auto parameters = world->Split(0, rank.number(), "p", GroupRole::kParameters);
    const auto rows = world->Split(0, rank.number(), "rows", GroupRole::kRows);
    const std::vector<Communicator*> groups = {world.get(), parameters.get(), rows.get()};
    for (Communicator* const group : groups) group->Barrier({"met", 0}).WaitHost();
    std::atomic<bool> released = false;
    const cudaStream_t full = rank.Stream(-5);
    rank.ComputeUntil(full, released);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::vector<std::vector<float>> data(3, std::vector<float>(1));
    std::vector<Work> works;
    for (size_t i = 0; i < 3; ++i)
      works.push_back(
          groups[i]->AllReduce(OnGpu(rank, data[i]), ReduceOp::kSum, {"x", 0}, rank.Stream()));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    released = true;
    for (Work& work : works) work.WaitHost();
  });
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<int> priorities;
    for (const fake::Start& start : outcome.starts)
      if (start.rank == rank && start.group >= 0) priorities.push_back(start.priority);
    priorities.erase(priorities.begin(), priorities.end() - 3);  // the barriers
    EXPECT_THAT(priorities, testing::ElementsAre(-5, -1, 0));
  }
}

// Two groups whose operations do not fit on a GPU together. Without the launch order each rank may
// start another one first, and both wait for ever.
TEST(FakeNccl, LaunchOrderIsWhatKeepsFullGpusFromADeadlock) {
  for (const bool launch_order : {true, false}) {
    int hangs = 0;
    for (uint64_t seed = 0; seed < 12 && hangs == 0; ++seed) {
      const Outcome outcome = fake::Run(
          {.ranks = 2, .seed = seed, .sms = 20, .launch_order = launch_order, .give_up_s = 3},
          [](Rank& rank) {
            const auto first = MakeWorld(rank);
            const auto second = first->Split(0, rank.number(), "second");
            first->Barrier({"met", 0}).WaitHost();
            second->Barrier({"met", 0}).WaitHost();
            std::atomic<bool> released = false;
            const cudaStream_t gate = rank.Stream();
            rank.ComputeUntil(gate, released, 1);
            std::vector<float> x(1), y(1);
            Work of_first = first->AllReduce(OnGpu(rank, x), ReduceOp::kSum, {"x", 0}, gate);
            Work of_second = second->AllReduce(OnGpu(rank, y), ReduceOp::kSum, {"y", 0}, gate);
            rank.control().Barrier({"released", 0}).WaitHost();
            released = true;
            of_first.WaitHost();
            of_second.WaitHost();
          });
      hangs += outcome.gave_up ? 1 : 0;
    }
    EXPECT_EQ(hangs > 0, !launch_order);
  }
}

// --- what the trainer builds on top ---

ParameterLayout LayoutOf(int ranks) {
  std::vector<ParamSpec> specs;
  for (int i = 0; i < 12; ++i)
    specs.push_back({.name = "p" + std::to_string(i), .shape = {i + 1, 13}});
  return ParameterLayout(specs,
                         {.first_bucket_bytes = 1024, .bucket_bytes = 4096, .num_slices = ranks});
}

// Returns the sum of gradient `i` of a parameter, if rank r contributes i % 100 + r.
float SumOf(int64_t i, int ranks) {
  return static_cast<float>(i % 100 * ranks + ranks * (ranks - 1) / 2);
}

// Sums gradients: backward writes each gradient on the compute stream and marks it as ready, while
// earlier buckets travel.
void SumGradients(Rank& rank, int ranks, ReducedTo to) {
  const ParameterLayout layout = LayoutOf(ranks);
  const auto comm = MakeWorld(rank);
  std::vector<float> grads(layout.num_elements());
  const cudaStream_t stream = rank.Stream();
  GradientReducer reducer(layout, *comm, OnGpu(rank, grads), to);
  for (int step = 0; step < 2; ++step) {
    rank.Compute(stream, 1, [&] { std::ranges::fill(grads, 0.0F); });
    reducer.BeginStep(stream);
    for (int param = static_cast<int>(layout.specs().size()); param-- > 0;) {
      rank.Compute(stream, 20, [&, param] {
        for (int64_t i = 0; i < layout.specs()[param].count(); ++i)
          grads[layout.offset(param) + i] = static_cast<float>(i % 100 + rank.number());
      });
      reducer.MarkReady(param);
    }
    reducer.Finish();
    rank.Synchronize(stream);
    const std::vector<Fragment> own =
        to == ReducedTo::kAllRanks ? layout.AllFragments() : layout.SliceFragments(rank.number());
    for (const Fragment& part : own)
      for (int64_t i = part.begin; i < part.end; ++i)
        ASSERT_EQ(grads[part.arena_begin + i - part.begin], SumOf(i, ranks));
  }
}

TEST(FakeNccl, GradientsAreSummed) {
  for (const int ranks : {2, 3, 4})
    for (uint64_t seed = 0; seed < 8; ++seed)
      for (const ReducedTo to : {ReducedTo::kAllRanks, ReducedTo::kSlices})
        RunWell({.ranks = ranks, .seed = seed}, [&](Rank& rank) { SumGradients(rank, ranks, to); });
}

// Gathers parameters: every rank updates its slices on the compute stream, and forward reads a
// parameter after Await.
void GatherParameters(Rank& rank, int ranks) {
  const ParameterLayout layout = LayoutOf(ranks);
  const auto comm = MakeWorld(rank);
  std::vector<float> weights(layout.num_elements());
  const cudaStream_t stream = rank.Stream();
  constexpr int kPerLayer = 3;
  std::vector<std::vector<int>> layers;
  for (int param = 0; param < static_cast<int>(layout.specs().size()); ++param) {
    if (param % kPerLayer == 0) layers.emplace_back();
    layers.back().push_back(param);
  }
  ParameterGather gather(layout, *comm,
                         {{.begin = 0, .end = layout.num_elements(), .data = OnGpu(rank, weights)}},
                         layers);
  for (int step = 1; step <= 2; ++step) {
    rank.Compute(stream, 10, [&, step] {
      for (const Fragment& part : layout.SliceFragments(rank.number()))
        for (int64_t i = part.begin; i < part.end; ++i)
          weights[part.arena_begin + i - part.begin] = static_cast<float>(i * step);
    });
    gather.Start(stream);
    int wrong = 0;
    for (int param = 0; param < static_cast<int>(layout.specs().size()); ++param) {
      gather.Await(param / kPerLayer);
      rank.Compute(stream, 20, [&, param, step] {
        for (int64_t i = 0; i < layout.specs()[param].count(); ++i)
          wrong += weights[layout.offset(param) + i] == static_cast<float>(i * step) ? 0 : 1;
      });
    }
    rank.Synchronize(stream);
    ASSERT_EQ(wrong, 0);
  }
}

TEST(FakeNccl, ParametersAreGatheredBeforeTheyAreRead) {
  for (const int ranks : {2, 3, 4})
    for (uint64_t seed = 0; seed < 8; ++seed)
      RunWell({.ranks = ranks, .seed = seed}, [&](Rank& rank) { GatherParameters(rank, ranks); });
}

// The host queues a whole backward pass and its sums, and then the gathers of a forward pass, in a
// fraction of the time that the GPU takes. The flight record, which the watchdog reads, still shows
// the oldest operation of the group.
TEST(FakeNccl, HostRunsAheadOfTheGpu) {
  RunWell({.ranks = 2, .collective_us = 500}, [](Rank& rank) {
    const ParameterLayout layout = LayoutOf(2);
    const auto comm = MakeWorld(rank);
    FlightRecorder flight(rank.number(), 2);
    RecordIn(*comm, &flight);
    comm->Barrier({"met", 0}).WaitHost();
    std::vector<float> grads(layout.num_elements()), weights(layout.num_elements());
    const cudaStream_t stream = rank.Stream();
    GradientReducer reducer(layout, *comm, OnGpu(rank, grads));
    std::atomic<bool> released = false;
    rank.ComputeUntil(stream, released, 1);
    const double begin_us = rank.host_us();
    reducer.BeginStep(stream);
    for (int param = static_cast<int>(layout.specs().size()); param-- > 0;) {
      rank.Compute(stream, 1000);
      reducer.MarkReady(param);
    }
    reducer.Finish();
    ParameterGather gather(
        layout, *comm, {{.begin = 0, .end = layout.num_elements(), .data = OnGpu(rank, weights)}},
        {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}});
    gather.Start(stream);
    gather.AwaitAll();
    EXPECT_LT(rank.host_us() - begin_us, 1000);
    const std::vector<FlightRecorder::DeviceHead> heads = flight.DeviceHeads();
    ASSERT_EQ(heads.size(), 1u);
    EXPECT_THAT(heads[0].text, HasSubstr("'grad_bucket' 0"));
    EXPECT_THAT(comm->TakeStreamWaits(), IsEmpty());
    released = true;
    rank.Synchronize(stream);
    EXPECT_GE(rank.host_us() - begin_us, 12 * 1000);
    // The last bucket is ready with the last gradient, so its sum is exposed as a whole.
    const std::map<std::string, double> waits = comm->TakeStreamWaits();
    EXPECT_GE(waits.at("grad_bucket"), 500e-6);
    EXPECT_GE(waits.at("param_bucket"), 500e-6);
    RecordIn(*comm, nullptr);
  });
}

// Returns the exposed time of a collective of 500 us that starts together with a kernel of
// `compute_us`, after which its result is wanted.
double ExposedMicroseconds(double compute_us) {
  double exposed_us = -1;
  RunWell({.ranks = 2, .collective_us = 500}, [&](Rank& rank) {
    const auto comm = MakeWorld(rank);
    const cudaStream_t stream = rank.Stream();
    std::vector<float> x(1);
    comm->AllReduce(OnGpu(rank, x), ReduceOp::kSum, {"first", 0}, stream).WaitHost();
    rank.Compute(stream, 1000);
    Work work = comm->AllReduce(OnGpu(rank, x), ReduceOp::kSum, {"grad_bucket", 0}, stream);
    rank.Compute(stream, compute_us);
    work.WaitOn(stream);
    rank.Compute(stream, 100);
    EXPECT_THAT(comm->TakeStreamWaits(), IsEmpty());  // the wait has not ended
    rank.Synchronize(stream);
    const std::map<std::string, double> waits = comm->TakeStreamWaits();
    ASSERT_EQ(waits.size(), 1u);
    if (rank.number() == 0) exposed_us = 1e6 * waits.at("grad_bucket");
    EXPECT_THAT(comm->TakeStreamWaits(), IsEmpty());
  });
  return exposed_us;
}

TEST(FakeNccl, ExposedOfScriptedTimeline) {
  EXPECT_NEAR(ExposedMicroseconds(300), 200, 4);
  EXPECT_NEAR(ExposedMicroseconds(450), 50, 1);
  EXPECT_EQ(ExposedMicroseconds(700), 0);
}

// Waits of an update end between two steps, next to those of a validation, which do not count.
TEST(FakeNccl, CountsWaitsByWhenTheyWereIssued) {
  RunWell({.ranks = 2, .collective_us = 500}, [&](Rank& rank) {
    const auto comm = MakeWorld(rank);
    const cudaStream_t stream = rank.Stream();
    std::vector<float> x(1);
    comm->AllReduce(OnGpu(rank, x), ReduceOp::kSum, {"first", 0}, stream).WaitHost();
    const auto wait = [&](const char* what) {
      rank.Compute(stream, 1000);
      comm->AllReduce(OnGpu(rank, x), ReduceOp::kSum, {what, 0}, stream).WaitOn(stream);
    };
    wait("update");
    comm->CountStreamWaits(false);
    EXPECT_THAT(comm->TakeStreamWaits(), IsEmpty());  // the wait of the update has not ended
    wait("validation");
    rank.Synchronize(stream);
    comm->CountStreamWaits(true);
    wait("step");
    rank.Synchronize(stream);
    const std::map<std::string, double> waits = comm->TakeStreamWaits();
    EXPECT_EQ(waits.count("validation"), 0u);
    EXPECT_NEAR(waits.at("update"), 500e-6, 10e-6);
    EXPECT_NEAR(waits.at("step"), 500e-6, 10e-6);
  });
}

// --- sums in the order of ranks ---

// [count] values whose sum over ranks depends on the order of the additions.
template <typename T>
std::vector<T> ShareOf(int rank, int64_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank));
  std::vector<T> share(static_cast<size_t>(count));
  for (T& value : share) value = std::uniform_real_distribution<T>(-1, 1)(random);
  return share;
}

// Returns the sums [count] of an all-reduce and of a reduce-scatter, in which NCCL's order depends
// on the seed. `count` need not be divisible by the number of ranks.
template <typename T>
std::vector<std::vector<T>> SumsOf(int ranks, uint64_t seed, bool ordered, int64_t count) {
  const int64_t part = count / ranks, scattered = part * ranks;
  std::vector<std::vector<T>> sums(2);
  sums[1].resize(static_cast<size_t>(scattered));
  RunWell({.ranks = ranks, .seed = seed, .seeded_sums = true}, [&](Rank& rank) {
    const auto world = MakeWorld(rank);
    if (ordered) world->SumInOrder(fake::OrderedSumOf(rank));
    // Groups that are split sum in the same way.
    const auto comm = world->Split(0, rank.number(), "sums");
    const cudaStream_t stream = rank.Stream();
    std::vector<T> all = ShareOf<T>(rank.number(), count), slices = all;
    const TensorRef in = OnGpu(rank, slices).Slice(0, scattered),
                    out = in.Slice(part * rank.number(), part);
    comm->AllReduce(OnGpu(rank, all), ReduceOp::kSum, {"sum", 0}, stream).WaitOn(stream);
    comm->ReduceScatter(in, out, ReduceOp::kSum, {"sum", 1}, stream).WaitOn(stream);
    rank.Synchronize(stream);
    std::copy_n(slices.begin() + part * rank.number(), part,
                sums[1].begin() + part * rank.number());
    if (rank.number() == ranks - 1) sums[0] = all;
  });
  return sums;
}

template <typename T>
void ExpectOneResult(DType dtype) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int64_t count : {ranks, 3, 1003}) {
      if (count < ranks) continue;
      std::vector<std::vector<T>> shares;
      std::vector<const void*> in;
      for (int rank = 0; rank < ranks; ++rank) shares.push_back(ShareOf<T>(rank, count));
      for (const std::vector<T>& share : shares) in.push_back(share.data());
      std::vector<T> expected(static_cast<size_t>(count));
      OrderedReduce(dtype, ReduceOp::kSum, in, expected.data(), count);
      int others = 0;
      for (uint64_t seed = 0; seed < 8; ++seed) {
        SCOPED_TRACE(Concat(ranks, " ranks, ", count, " elements, seed ", seed));
        const auto ordered = SumsOf<T>(ranks, seed, true, count);
        ASSERT_EQ(ordered[0], expected);
        ASSERT_TRUE(std::ranges::equal(ordered[1], std::span(expected).first(ordered[1].size())));
        if (count > 1000) others += SumsOf<T>(ranks, seed, false, count)[0] != expected ? 1 : 0;
      }
      // Without it, the bits are those of NCCL's order.
      if (count > 1000 && ranks > 2) {
        EXPECT_GT(others, 4);
      }
    }
  }
}

// Gradients are fp32, and the sums of preferences over shared rows are fp64.
TEST(FakeNccl, SumsInTheOrderOfRanksHaveOneResult) {
  ExpectOneResult<float>(DType::kF32);
  ExpectOneResult<double>(DType::kF64);
}

// --- failures ---

TEST(FakeNccl, RendezvousNamesWhoIsMissing) {
  const NcclOptions options = {.timeout_s = 0.3, .init_timeout_s = 0.3};
  // No rank reaches the root: all say so, with the root's address.
  RunWell({.ranks = 3, .unreachable = true}, [&](Rank& rank) {
    const auto comm = MakeWorld(rank, options);
    EXPECT_HL_ERROR(comm->Barrier({"met", 0}), ExitCode::kTimeout,
                    "NCCL rendezvous of group world failed on rank 0, 1 and 2 of 3",
                    "connect to its rank 0 at 127.0.0.1 port", "set NCCL_SOCKET_IFNAME");
  });
  // Rank 1 does not come.
  const Outcome outcome = fake::Run({.ranks = 3, .control_timeout_s = 0.5}, [&](Rank& rank) {
    const auto comm = MakeWorld(rank, options);
    if (rank.number() == 1) rank.Hang();
    comm->Barrier({"met", 0});
  });
  EXPECT_THAT(outcome.error_text, HasSubstr("rank 1"));
  EXPECT_LT(outcome.wall_s, 5);
}

// The ranks begin a rendezvous at different times, because they load data and weights before it.
// The deadline of single operations does not apply to it.
TEST(FakeNccl, RendezvousWaitsForRanksThatBeginLater) {
  for (const int late : {0, 1}) {
    RunWell({.ranks = 2, .control_timeout_s = 0.3}, [&](Rank& rank) {
      const auto comm = MakeWorld(rank, {.timeout_s = 0.3, .init_timeout_s = 20});
      if (rank.number() == late) std::this_thread::sleep_for(std::chrono::milliseconds(800));
      comm->Barrier({"met", 0}).WaitHost();
    });
  }
}

// Rank 0 knows at once that it cannot join, and the others only after their deadline.
TEST(FakeNccl, RendezvousReportsTheFirstFailure) {
  const NcclOptions options = {.timeout_s = 0.3, .init_timeout_s = 1};
  RunWell({.ranks = 2, .unreachable = true, .control_timeout_s = 0.3}, [&](Rank& rank) {
    const auto comm = MakeWorld(rank, options);
    if (rank.number() == 0) rank.FailAsynchronously();
    EXPECT_HL_ERROR(comm->Barrier({"met", 0}), ExitCode::kTimeout,
                    "NCCL rendezvous of group world failed on rank 0 and 1 of 2",
                    "remote process exited");
  });
}

TEST(FakeNccl, AnAsynchronousErrorIsALostPeer) {
  const Outcome outcome = fake::Run({.ranks = 2}, [&](Rank& rank) {
    const auto comm = MakeWorld(rank);
    comm->Barrier({"met", 0}).WaitHost();
    rank.FailAsynchronously();
    comm->Barrier({"met", 1}).WaitHost();
  });
  EXPECT_THAT(outcome.error_text, HasSubstr("remote process exited"));
}

// The old order of an end: the first group is aborted while a kernel of the second one is stuck.
TEST(FakeNccl, AbortingOneOfTwoStuckGroupsHangs) {
  const Outcome outcome = fake::Run({.ranks = 2, .give_up_s = 1}, [](Rank& rank) {
    ncclComm_t comms[2] = {};
    cudaStream_t streams[2] = {rank.Stream(), rank.Stream()};
    for (int i = 0; i < 2; ++i) {
      ncclUniqueId id = {};
      if (rank.number() == 0) ncclGetUniqueId(&id);
      const std::string bytes = BroadcastBytes(
          rank.control(), std::string(id.internal, sizeof id.internal), 0, {"id", i});
      std::memcpy(id.internal, bytes.data(), sizeof id.internal);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0, config.maxCTAs = 8;
      ncclCommInitRankConfig(&comms[i], 2, id, rank.number(), &config);
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) ncclCommGetAsyncError(comms[i], &state);
    }
    if (rank.number() == 1) rank.Hang();
    float x = 0;
    for (int i = 0; i < 2; ++i)
      ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comms[i], streams[i]);
    ncclCommAbort(comms[0]);
  });
  EXPECT_TRUE(outcome.gave_up);
}

}  // namespace
}  // namespace halflife::dist
