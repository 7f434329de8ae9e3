// Ranks with GPUs that hang, die or lose a peer: the job ends within the deadline and names the
// rank. The GPUs are those of fake_gpu/world.h, where the end of a process is the end of the world.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "core/clock.h"
#include "dist/fake_gpu/cuda_runtime.h"
#include "dist/fake_gpu/world.h"
#include "dist/flight_report.h"
#include "dist/nccl_communicator.h"
#include "dist/watchdog.h"
#include "support/temp_dir.h"

namespace halflife::dist {
namespace {

using fake::Outcome;
using fake::Rank;
using test::TempDir;
using testing::HasSubstr;

constexpr double kTimeout = 0.4;  // seconds
constexpr double kGrace = 10;     // seconds until everything has ended after a timeout
constexpr int kBad = 1;           // the rank that fails

// Collects the findings of a job's watchdogs, in order.
class Findings {
 public:
  struct One {
    int rank;
    CommFailure failure;
    std::vector<FlightFinding> late;  // who is late, as the error message of the program says
  };
  void Add(int rank, const CommFailure& failure) {
    // Differences count as such after two seconds. The deadline here is shorter.
    const int64_t later_us = UnixMicroseconds() + 3'000'000;
    std::vector<FlightFinding> late;
    for (FlightFinding& finding : FlightFindings(ReadFlight(dir_.path()), later_us))
      if (finding.kind == FlightFinding::Kind::kDiverged) late.push_back(std::move(finding));
    const std::lock_guard lock(mutex_);
    all_.push_back({rank, failure, std::move(late)});
  }
  std::filesystem::path folder() const { return dir_.path(); }
  const std::vector<One>& all() const { return all_; }

 private:
  const TempDir dir_;
  std::mutex mutex_;
  std::vector<One> all_;
};

// A failure of rank kBad in the second step, and the place in the step where it happens.
struct Fault {
  const char* place;
  std::function<void(Rank&, cudaStream_t)> happen;
};

// A step like the trainer's: the host waits once, for the scalars.
class Job {
 public:
  Job(Rank& rank, int sp, Findings& findings, const Fault& fault)
      : rank_(rank), fault_(fault), flight_(rank.number(), rank.control().size()) {
    flight_.KeepIn(findings.folder(), "a");
    const auto watch = std::make_shared<DeviceWatch>();
    world_ =
        MakeNcclCommunicator(rank.control(), rank.device(), "world",
                             {.timeout_s = kTimeout, .init_timeout_s = kTimeout, .watch = watch});
    RecordIn(*world_, &flight_);
    const int color = rank.number() / sp;
    rows_ = world_->Split(color, rank.number(), Concat("rows_", color), GroupRole::kRows);
    watchdog_.emplace(flight_, watch,
                      WatchLimits{.timeout_s = kTimeout,
                                  .data_s = 2 * kTimeout,
                                  .save_s = 2 * kTimeout,
                                  .poller_s = 2 * kTimeout,
                                  .num_first_steps = 0,
                                  .interval_s = 0.02},
                      [&findings, number = rank.number()](const CommFailure& failure) {
                        findings.Add(number, failure);
                        fake::EndWorld();
                      });
  }

  void Train() {
    for (step_ = 0; step_ < 3; ++step_) {
      Enter("data");
      Enter("forward");
      rank_.Compute(stream_, 100);
      Reach("gather");
      Await(world_->AllReduce(Data(0), ReduceOp::kSum, {"param_bucket", 0}, stream_));
      Reach("exchange");
      Await(rows_->AllReduce(Data(1), ReduceOp::kSum, {"state", 0}, stream_));
      Enter("backward");
      rank_.Compute(stream_, 200);
      Reach("gradient bucket");
      Await(world_->AllReduce(Data(2), ReduceOp::kSum, {"grad_bucket", 0}, stream_));
      Enter("reduce");
      if (cudaStreamSynchronize(stream_) != cudaSuccess) return;
      Enter("save");
    }
  }

 private:
  void Enter(const char* phase) {
    flight_.EnterPhase(phase, step_);
    Reach(phase);
  }
  void Reach(const std::string& place) {
    if (rank_.number() == kBad && step_ == 1 && place == fault_.place)
      fault_.happen(rank_, stream_);
  }
  TensorRef Data(int index) {
    TensorRef ref = Ref(&data_[index], 1);
    ref.device = rank_.device();
    return ref;
  }
  void Await(Work work) { work.WaitOn(stream_); }

  Rank& rank_;
  const Fault& fault_;
  FlightRecorder flight_;
  std::unique_ptr<Communicator> world_, rows_;
  const cudaStream_t stream_ = rank_.Stream();
  float data_[3] = {};
  int step_ = 0;
  std::optional<Watchdog> watchdog_;
};

void ExpectEnds(const Fault& fault, const fake::Options& options, int sp) {
  SCOPED_TRACE(Concat(fault.place, ", ", options.ranks, " ranks, sp ", sp));
  Findings findings;
  const Outcome outcome =
      fake::Run(options, [&](Rank& rank) { Job(rank, sp, findings, fault).Train(); });
  EXPECT_FALSE(outcome.gave_up);
  EXPECT_LT(outcome.wall_s, kTimeout + kGrace);
  ASSERT_FALSE(findings.all().empty());
  const Findings::One& first = findings.all()[0];
  // The bad rank finds its own fault, or the others name it first of all.
  const bool own = first.rank == kBad;
  const bool named = !first.late.empty() && first.late[0].rank == kBad;
  EXPECT_TRUE(own || named) << first.rank << ": " << first.failure.text;
  EXPECT_NE(first.failure.kind, CommFailure::Kind::kAborted);
}

// A rank whose host stops, at every place of a step, on meshes of two and four ranks.
TEST(FakeFailures, EveryHangEnds) {
  for (const char* const place :
       {"data", "forward", "gather", "exchange", "backward", "gradient bucket", "reduce", "save"}) {
    const Fault stops = {place, [](Rank& rank, cudaStream_t) { rank.Hang(); }};
    ExpectEnds(stops, {.ranks = 4}, 2);
    ExpectEnds(stops, {.ranks = 2, .seed = 1}, 1);
    if (HasFailure()) return;
  }
}

TEST(FakeFailures, EveryStuckGpuEnds) {
  const auto endless = [](Rank& rank, cudaStream_t stream) { rank.ComputeForever(stream); };
  const auto full = [](Rank& rank, cudaStream_t stream) {
    rank.ComputeForever(stream);
    for (int i = 0; i < 100; ++i) rank.Compute(stream, 1);
  };
  for (const char* const place : {"forward", "exchange", "gradient bucket"}) {
    ExpectEnds({place, endless}, {.ranks = 4}, 2);
    ExpectEnds({place, full}, {.ranks = 4, .launch_queue = 32}, 2);
    // The poller's queries do not return either.
    ExpectEnds({place, full}, {.ranks = 2, .launch_queue = 32, .driver_lock = true}, 1);
    if (HasFailure()) return;
  }
}

TEST(FakeFailures, EveryDeadRankAndErrorEnds) {
  const Fault dies = {"backward", [](Rank& rank, cudaStream_t) { rank.Die(); }};
  ExpectEnds(dies, {.ranks = 4}, 2);
  Findings findings;
  const Fault lost = {"backward", [](Rank& rank, cudaStream_t) { rank.FailAsynchronously(); }};
  const Outcome outcome =
      fake::Run({.ranks = 4}, [&](Rank& rank) { Job(rank, 2, findings, lost).Train(); });
  EXPECT_FALSE(outcome.gave_up);
  if (findings.all().empty()) {  // the host called NCCL before the watchdog looked
    EXPECT_THAT(outcome.error_text, testing::HasSubstr("remote process exited"));
    return;
  }
  EXPECT_EQ(findings.all()[0].rank, kBad);
  EXPECT_EQ(findings.all()[0].failure.kind, CommFailure::Kind::kPeerLost);
}

// Without a fault no watchdog finds anything, although the ranks take turns in being slow.
TEST(FakeFailures, ASoundJobEndsByItself) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Findings findings;
    const Fault none = {"nowhere", {}};
    const Outcome outcome = fake::Run({.ranks = 4, .seed = seed, .max_delay_us = 2000},
                                      [&](Rank& rank) { Job(rank, 2, findings, none).Train(); });
    EXPECT_EQ(outcome.error_text, "");
    EXPECT_TRUE(findings.all().empty()) << findings.all()[0].failure.text;
    EXPECT_EQ(outcome.double_joins, 0);
  }
}

// The message says which rank, which operation and what the rank does instead.
TEST(FakeFailures, HungRankIsNamed) {
  Findings findings;
  const Fault stops = {"gradient bucket", [](Rank& rank, cudaStream_t) { rank.Hang(); }};
  fake::Run({.ranks = 4}, [&](Rank& rank) { Job(rank, 2, findings, stops).Train(); });
  ASSERT_FALSE(findings.all().empty());
  const Findings::One& first = findings.all()[0];
  EXPECT_THAT(first.failure.text,
              HasSubstr("timeout: all_reduce 'grad_bucket' 0 (group world, seq 3) has waited"));
  ASSERT_FALSE(first.late.empty());
  EXPECT_THAT(first.late[0].text,
              HasSubstr("rank 1 has not issued world #3 all_reduce 'grad_bucket' 0 (it is in phase "
                        "backward of step 1"));
  EXPECT_THAT(first.late[0].text, HasSubstr("rank 0, 2 and 3 did"));
}

// Two groups are stuck when a wait of the host times out. The error unwinds the rank, and no
// destructor waits: neither for the other group, nor for memory.
TEST(FakeFailures, TwoStuckGroups) {
  const Outcome outcome = fake::Run({.ranks = 2}, [](Rank& rank) {
    const auto first = MakeNcclCommunicator(rank.control(), rank.device(), "world",
                                            {.timeout_s = kTimeout, .init_timeout_s = 20});
    const auto second = first->Split(0, rank.number(), "rows", GroupRole::kRows);
    first->Barrier({"met", 0}).WaitHost();
    second->Barrier({"met", 0}).WaitHost();
    if (rank.number() == kBad) rank.Hang();
    float x = 0, y = 0;
    TensorRef x_ref = Ref(&x, 1), y_ref = Ref(&y, 1);
    x_ref.device = y_ref.device = rank.device();
    Work of_first = first->AllReduce(x_ref, ReduceOp::kSum, {"x", 0}, nullptr);
    Work of_second = second->AllReduce(y_ref, ReduceOp::kSum, {"y", 0}, nullptr);
    of_first.WaitHost();
  });
  EXPECT_FALSE(outcome.gave_up);
  EXPECT_THAT(outcome.error_text, HasSubstr("timeout: all_reduce 'x' 0"));
  EXPECT_LT(outcome.wall_s, kTimeout + kGrace);
}

}  // namespace
}  // namespace halflife::dist
