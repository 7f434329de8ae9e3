// Flight records: the last operations of each rank, in files that outlive the ranks, and the report
// that is made from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "core/clock.h"
#include "dist/flight_report.h"
#include "dist/rank_context.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::dist {
namespace {

using test::TempDir;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = FlightFinding::Kind;

Request Sum(float* data, int64_t count, int index) {
  return {.kind = OpKind::kAllReduce,
          .tag = {"grad_bucket", index},
          .in = Ref(data, count),
          .out = Ref(data, count)};
}

TEST(FlightRecorder, KeepsPhaseAndOperations) {
  const TempDir dir;
  float data[3] = {};
  FlightRecorder recorder(2, 4);
  const uint64_t before = recorder.Begin("world", 4, Sum(data, 3, 7), 11);
  recorder.KeepIn(dir.path() / "flight", "cafe0001");
  recorder.End(before, OpState::kDone);
  recorder.Begin("rows_1", 2, Sum(data, 1, 8), 0);
  recorder.EnterPhase("backward", 17);
  const FlightRecord record = ReadFlightRecord(dir.path() / "flight" / "r00002.flight");
  EXPECT_EQ(record.rank, 2);
  EXPECT_EQ(record.world_size, 4);
  EXPECT_EQ(record.pid, ::getpid());
  EXPECT_EQ(record.attempt, "cafe0001");
  EXPECT_EQ(record.process, ProcessState::kRuns);
  EXPECT_EQ(record.phase, "backward");
  EXPECT_EQ(record.step, 17);
  EXPECT_EQ(record.failed_us, 0);
  ASSERT_EQ(record.operations.size(), 2u);
  const FlightOperation& first = record.operations[0];
  EXPECT_EQ(first.group, "world");
  EXPECT_EQ(first.group_size, 4);
  EXPECT_EQ(first.seq, 11);
  EXPECT_EQ(Describe(first), "all_reduce 'grad_bucket' 7");
  EXPECT_EQ(first.bytes, 12);
  EXPECT_EQ(first.state, OpState::kDone);
  EXPECT_GE(first.ended_us, first.issued_us);
  EXPECT_EQ(record.operations[1].state, OpState::kIssued);
  EXPECT_EQ(record.operations[1].ended_us, 0);
}

// Returns the bytes of pages of files that this process has made dirty, or -1.
int64_t NumDirtied() {
  std::ifstream io("/proc/self/io");
  for (std::string line; std::getline(io, line);)
    if (line.starts_with("write_bytes: ")) return std::stoll(line.substr(line.find(' ')));
  return -1;
}

// Ranks on other hosts read the records. By itself, the kernel would write them after 30 seconds.
// Only a page that was written can become dirty again, by the next sign of life.
TEST(FlightRecorder, IsWrittenToItsFileSystemWithinSeconds) {
  const TempDir dir;
  struct statfs info {};
  if (::statfs(dir.path().c_str(), &info) != 0 || info.f_type == TMPFS_MAGIC || NumDirtied() < 0)
    GTEST_SKIP() << "files in memory are never written, or /proc/self/io cannot be read";
  FlightRecorder recorder(0, 1);
  recorder.KeepIn(dir.path(), "a");
  const int64_t before = NumDirtied();
  const Stopwatch stopwatch;
  while (NumDirtied() == before && stopwatch.Seconds() < 15)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GT(NumDirtied(), before);
}

// As on a full disk: only the first page of the record can be written.
TEST(FlightRecorder, LeavesNoPartOfARecord) {
  const TempDir dir;
  FlightRecorder whole(0, 2), part(1, 2);
  whole.KeepIn(dir.path(), "a");
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit one_page = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &one_page), 0);
  part.KeepIn(dir.path(), "a");
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_EQ(part.path(), "");
  EXPECT_EQ(ReadFlight(dir.path()).size(), 1u);
}

TEST(FlightRecorder, KeepsTheLatestOperations) {
  const TempDir dir;
  FlightRecorder recorder(0, 1);
  recorder.KeepIn(dir.path(), "a");
  for (int i = 0; i < 1500; ++i) {
    const uint64_t number = recorder.Begin("world", 1, Sum(nullptr, 0, i), i);
    // An operation that does not exist yet.
    if (i == 3) recorder.End(number + 1024, OpState::kFailed);
    recorder.End(number, OpState::kDone);
  }
  const FlightRecord record = ReadFlightRecord(dir.path() / FlightRecordName(0));
  EXPECT_EQ(record.num_operations, 1500u);
  ASSERT_EQ(record.operations.size(), 1024u);
  for (size_t i = 0; i < record.operations.size(); ++i) {
    EXPECT_EQ(record.operations[i].index, static_cast<int>(476 + i));
    EXPECT_EQ(record.operations[i].state, OpState::kDone);
  }
}

TEST(FlightRecorder, CountsBytesByKindOfGroup) {
  FlightRecorder recorder(0, 4);
  float data[4] = {};
  recorder.Begin("world", 4, Sum(data, 3, 0), 0);
  recorder.Begin("world", 4, Sum(data, 1, 0), 1);
  recorder.Begin("rows_0", 2, Sum(data, 4, 0), 0);
  EXPECT_EQ(recorder.TakeBytes(), (std::map<std::string, int64_t>{{"rows", 16}, {"world", 16}}));
  EXPECT_TRUE(recorder.TakeBytes().empty());
}

TEST(FlightRecorder, OutlivesAKilledProcess) {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    FlightRecorder recorder(0, 1);
    recorder.KeepIn(dir.path(), "a");
    recorder.EnterPhase("forward", 5);
    recorder.Begin("world", 1, Sum(nullptr, 0, 3), 9);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const FlightRecord record = ReadFlightRecord(dir.path() / FlightRecordName(0));
  EXPECT_EQ(record.pid, child);
  EXPECT_EQ(record.process, ProcessState::kGone);
  EXPECT_EQ(record.phase, "forward");
  ASSERT_EQ(record.operations.size(), 1u);
  EXPECT_EQ(record.operations[0].seq, 9);
}

TEST(FlightRecorder, GoesWhereTheRunEndedWell) {
  const TempDir dir;
  FlightRecorder one(0, 2), other(1, 2);
  one.KeepIn(dir.path() / "flight", "a");
  other.KeepIn(dir.path() / "flight", "a");
  one.Discard();
  EXPECT_EQ(ReadFlight(dir.path() / "flight").size(), 1u);
  other.Discard();
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "flight"));
  EXPECT_THAT(ReadFlight(dir.path() / "flight"), IsEmpty());
}

TEST(FlightRecorder, DoesWithoutAFileWhereThereCanBeNone) {
  const TempDir dir;
  std::ofstream(dir.path() / "file") << "no folder";
  FlightRecorder recorder(0, 1);
  recorder.KeepIn(dir.path() / "file", "a");
  EXPECT_TRUE(recorder.path().empty());
  recorder.End(recorder.Begin("world", 1, Sum(nullptr, 0, 0), 0), OpState::kDone);
  recorder.Discard();
}

// The context records the collectives of the world and of groups that are split from it.
TEST(FlightRecorder, RanksRecordTheirCollectives) {
  const TempDir dir;
  RunLocalRanks(3, {.timeout_s = 20}, [&](RankContext& context) {
    context.flight().KeepIn(dir.path(), "a");
    double one = 1;
    context.world().AllReduce(Ref(&one, 1), ReduceOp::kSum, {"ones", 4}, nullptr).WaitHost();
    const auto pair = context.world().Split(context.rank() / 2, 0, "pair");
    pair->Barrier({"met", 0}).WaitHost();
  });
  const std::vector<FlightRecord> records = ReadFlight(dir.path());
  ASSERT_EQ(records.size(), 3u);
  for (const FlightRecord& record : records) {
    std::vector<std::string> operations;
    for (const FlightOperation& operation : record.operations) {
      if (operation.what == "split") continue;
      EXPECT_EQ(operation.state, OpState::kDone);
      operations.push_back(operation.group + ": " + Describe(operation));
    }
    EXPECT_THAT(operations, ElementsAre("world: all_reduce 'ones' 4", "pair: barrier 'met' 0"));
  }
  EXPECT_THAT(FlightFindings(records, UnixMicroseconds()), IsEmpty());
}

TEST(FlightReport, RefusesWhatIsNoRecord) {
  const TempDir dir;
  std::ofstream(dir.path() / "r00000.flight") << "short";
  EXPECT_HL_ERROR(ReadFlight(dir.path()), ExitCode::kData, "r00000.flight",
                  "is not a flight record");
  FlightRecorder recorder(0, 1);
  recorder.KeepIn(dir.path(), "a");
  const auto damage = [&](std::streamoff at, uint32_t value) {
    std::fstream file(dir.path() / "r00000.flight", std::ios::in | std::ios::out);
    file.seekp(at);
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  damage(8, 99);
  EXPECT_HL_ERROR(ReadFlight(dir.path()), ExitCode::kData, "version 99");
  damage(8, flight::kVersion);
  damage(12, 5);
  EXPECT_HL_ERROR(ReadFlight(dir.path()), ExitCode::kData, "rank 5 of 1");
}

// --- The report ---

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kNow = 1'000'000 * kSecond;

FlightOperation Issued(int64_t seq, int64_t seconds_ago, const std::string& what = "grad_bucket",
                       const std::string& group = "world") {
  return {.number = static_cast<uint64_t>(seq + 1),
          .group = group,
          .group_size = group == "world" ? 3 : 1,
          .seq = seq,
          .kind = "all_reduce",
          .what = what,
          .issued_us = kNow - seconds_ago * kSecond};
}

FlightRecord Rank(int rank, std::vector<FlightOperation> operations) {
  return {.rank = rank,
          .world_size = 3,
          .pid = 100 + rank,
          .host = "node",
          .alive_us = kNow,
          .process = ProcessState::kRuns,
          .phase = rank == 1 ? "data" : "backward",
          .phase_since_us = kNow - 31 * kSecond,
          .step = 5,
          .operations = std::move(operations)};
}

std::vector<std::string> Texts(const std::vector<FlightRecord>& records) {
  std::vector<std::string> texts;
  for (const FlightFinding& finding : FlightFindings(records, kNow)) texts.push_back(finding.text);
  return texts;
}

TEST(FlightReport, NamesWhoHasNotIssuedWhat) {
  EXPECT_THAT(Texts({Rank(0, {Issued(11, 40), Issued(12, 30)}), Rank(1, {Issued(11, 40)}),
                     Rank(2, {Issued(11, 40), Issued(12, 31), Issued(13, 30)})}),
              ElementsAre("rank 1 has not issued world #12 all_reduce 'grad_bucket' 0 (it is in "
                          "phase data of step 5 for 31 s); rank 0 and 2 did, 30 s ago"));
}

// A rank that has issued no operation is reported as late if the group is the whole world.
TEST(FlightReport, NamesWhoHasIssuedNone) {
  FlightOperation of_two = Issued(0, 30, "state", "rows_1");
  of_two.group_size = 2;
  EXPECT_THAT(Texts({Rank(0, {Issued(0, 30)}), Rank(1, {}), Rank(2, {Issued(0, 30), of_two})}),
              ElementsAre(HasSubstr("rank 1 has not issued world #0 all_reduce 'grad_bucket' 0")));
}

// After a thousand sums in other groups, the rank's record no longer contains its operations of
// this group.
TEST(FlightReport, NamesWhoseRecordGoesBackNoFurther) {
  FlightRecord full = Rank(1, {Issued(2000, 35, "grad_bucket", "sums")});
  full.num_operations = 2000;
  EXPECT_THAT(Texts({Rank(0, {Issued(4, 40), Issued(5, 30)}), full,
                     Rank(2, {Issued(4, 40), Issued(5, 31)})}),
              ElementsAre(HasSubstr("rank 1 has not issued world #5 all_reduce 'grad_bucket' 0")));
}

TEST(FlightReport, NamesWhoDoesSomethingElse) {
  EXPECT_THAT(Texts({Rank(0, {Issued(11, 40), Issued(12, 30)}),
                     Rank(1, {Issued(11, 40), Issued(12, 30, "loss")}),
                     Rank(2, {Issued(11, 40), Issued(12, 30)})}),
              ElementsAre("rank 1 has issued world #12 as all_reduce 'loss' 0, rank 0 and 2 as "
                          "all_reduce 'grad_bucket' 0"));
}

TEST(FlightReport, NamesProcessesThatStandOrAreGone) {
  FlightRecord stopped = Rank(1, {Issued(11, 40)}), silent = Rank(2, {Issued(11, 40)});
  stopped.process = ProcessState::kStopped;
  stopped.alive_us = kNow - 40 * kSecond;
  silent.process = ProcessState::kUnknown;
  silent.alive_us = kNow - 90 * kSecond;
  EXPECT_THAT(Texts({Rank(0, {Issued(11, 40)}), stopped, silent}),
              ElementsAre(HasSubstr("rank 2 (pid 102 on node) has given its last sign of life 1 "
                                    "min 30 s ago"),
                          HasSubstr("rank 1 (pid 101 on node) is stopped, its last sign of life "
                                    "40 s ago, in phase data of step 5")));
}

TEST(FlightReport, PutsTheFirstCauseFirst) {
  FlightRecord late = Rank(0, {Issued(11, 40)}), first = Rank(1, {Issued(11, 40)});
  late.cause = "timeout";
  late.failed_us = kNow - 2 * kSecond;
  first.cause = "out of memory";
  first.failed_us = kNow - 9 * kSecond;
  EXPECT_THAT(Texts({late, first, Rank(2, {Issued(11, 40)})}),
              ElementsAre(HasSubstr("rank 1 failed 9 s ago, in phase data of step 5 for 22 s: out "
                                    "of memory"),
                          HasSubstr("rank 0 failed 2 s ago")));
}

// Rank 1 has not reached the sum of the world, because it waits for rank 0's state.
TEST(FlightReport, PutsWhoWaitsBehindWhomItWaitsFor) {
  FlightOperation state = Issued(4, 20, "state", "rows");
  state.group_size = 2;
  FlightOperation before = Issued(3, 45, "state", "rows");
  before.group_size = 2, before.state = OpState::kDone;
  FlightOperation summed = Issued(11, 40);
  summed.state = OpState::kDone;
  EXPECT_THAT(Texts({Rank(0, {before, summed, Issued(12, 30)}), Rank(1, {before, summed, state}),
                     Rank(2, {summed, Issued(12, 30)})}),
              ElementsAre(HasSubstr("rank 1 has not issued world #12"),
                          HasSubstr("rank 0 has not issued rows #4")))
      << "each waits for the other";
  EXPECT_THAT(Texts({Rank(0, {before, summed}), Rank(1, {before, summed, state}),
                     Rank(2, {summed, Issued(12, 30)})}),
              ElementsAre(HasSubstr("rank 0 has not issued world #12"),
                          HasSubstr("rank 0 has not issued rows #4"),
                          HasSubstr("rank 1 has not issued world #12")));
}

// All ranks have issued the sum, but the GPU of rank 1 still computes.
TEST(FlightReport, NamesWhoseGpuIsLate) {
  const auto on_gpu = [](bool ready) {
    FlightOperation sum = Issued(12, 30);
    sum.on_device = true;
    sum.ready_us = ready ? kNow - 20 * kSecond : 0;
    return sum;
  };
  const std::vector<FlightRecord> records = {Rank(0, {on_gpu(true)}), Rank(1, {on_gpu(false)}),
                                             Rank(2, {on_gpu(true)})};
  EXPECT_THAT(Texts(records),
              ElementsAre("rank 1 has issued world #12 all_reduce 'grad_bucket' 0, but its GPU has "
                          "not come to it (it is in phase data of step 5 for 31 s); the GPU of "
                          "rank 0 and 2 came to it 20 s ago"));
  EXPECT_EQ(FlightFindings(records, kNow)[0].rank, 1);
}

// A wait that reached its deadline was a wait for the late rank.
TEST(FlightReport, NamesWhomAFailedOperationWaitedFor) {
  FlightOperation failed = Issued(12, 30);
  failed.state = OpState::kFailed;
  EXPECT_THAT(Texts({Rank(0, {Issued(11, 40), failed}), Rank(1, {Issued(11, 40)}),
                     Rank(2, {Issued(11, 40), failed})}),
              ElementsAre(HasSubstr("rank 1 has not issued world #12")));
}

// Rank 0's send has completed, although rank 1 has not called receive yet.
TEST(FlightReport, SaysNothingOfWhoIsBehindASender) {
  FlightOperation sent = Issued(4, 20, "state", "rows");
  sent.group_size = 2, sent.state = OpState::kDone;
  FlightOperation before = sent;
  before.seq = 3;
  EXPECT_THAT(Texts({Rank(0, {before, sent}), Rank(1, {before}), Rank(2, {})}), IsEmpty());
}

TEST(FlightReport, NamesRanksWithoutARecord) {
  EXPECT_THAT(Texts({Rank(0, {}), Rank(2, {})}), ElementsAre("no flight record of rank 1"));
}

// In a healthy run, ranks differ only for a short time. Each group has its own sequence numbers.
TEST(FlightReport, SaysNothingOfASoundRun) {
  EXPECT_THAT(Texts({Rank(0, {Issued(11, 40), Issued(12, 1)}), Rank(1, {Issued(11, 40)}),
                     Rank(2, {Issued(11, 40), Issued(40, 1, "state", "rows_1")})}),
              IsEmpty());
}

// Records of an earlier start with more ranks are ignored.
TEST(FlightReport, ReadsTheLatestStart) {
  const TempDir dir;
  std::vector<std::unique_ptr<FlightRecorder>> before;
  for (int rank = 0; rank < 3; ++rank) {
    before.push_back(std::make_unique<FlightRecorder>(rank, 3));
    before.back()->KeepIn(dir.path(), "before");
  }
  before.clear();
  ::usleep(2000);
  FlightRecorder now(0, 1);
  now.KeepIn(dir.path(), "now");
  const std::vector<FlightRecord> records = ReadFlight(dir.path());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].attempt, "now");
}

}  // namespace
}  // namespace halflife::dist
