#include "cli/world.h"

#include <c10/util/Exception.h>
#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <new>
#include <thread>

#include "cli/command_line/program.h"
#include "cli/doctor/checks.h"
#include "core/error.h"
#include "core/files.h"
#include "core/host.h"
#include "core/human.h"
#include "core/log.h"
#include "core/versions.h"
#include "dist/communicator.h"
#include "dist/flight_report.h"
#include "dist/rank_context.h"
#include "ops/out_of_memory.h"
#include "train/record/run_folder.h"

namespace halflife::cli {
namespace {

constexpr char kOutOfMemory[] =
    ". Use a smaller model, batch or sequence (`halflife train --dry-run` prints the memory).";

Failure FailureOfCollective(const dist::CommError& error) {
  const bool echo = error.kind() == dist::CommFailure::Kind::kPeerLost ||
                    error.kind() == dist::CommFailure::Kind::kAborted;
  return {error.code(), error.what(), echo};
}

}  // namespace

Failure DescribeFailure(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const dist::CommError& error) {
    return FailureOfCollective(error);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    return {ExitCode::kEnvironment, Concat("the file system refuses: ", TextOf(error))};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kEnvironment, Concat("out of memory", kOutOfMemory)};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (!ops::IsOutOfMemory(error))
      return {ExitCode::kInternal, Concat("internal fault: LibTorch: ", text)};
    return {ExitCode::kEnvironment, Concat("out of memory: ", text, kOutOfMemory)};
  } catch (const std::exception& error) {
    return {ExitCode::kInternal, Concat("internal fault: ", error.what())};
  }
}

namespace {

// Adds the findings of the flight records to a failure. A collective that timed out knows which
// ranks it waited for, and their records contain what these ranks did instead.
void AddFlight(dist::RankContext& context, Failure* failure) {
  const std::filesystem::path folder = context.flight().Folder();
  if (failure->code != ExitCode::kTimeout || folder.empty()) return;
  const std::string late = dist::WhoIsLate(folder);
  if (late.empty()) return;
  failure->text += Concat("; ", late, " (more: `halflife inspect ", folder.string(), "`)");
}

// State that the ranks of this process share when they fail.
struct Ending {
  std::atomic<bool> has_cause{false};  // one of them failed first, and will end the process
  std::atomic<bool> has_begun{false};  // a thread of a process with one rank ends the process
  std::mutex reporting;
};

// Blocks all callers but the first. The thread of a rank and its watchdog may detect a failure at
// the same time; only one of them may end the process.
void EnterOnce(Ending& ending) {
  if (!ending.has_begun.exchange(true)) return;
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Reports the cause and ends the world. Does not return.
[[noreturn]] void EndWorld(dist::RankContext& context, Failure failure,
                           const std::filesystem::path& abort_dir, Ending& ending) {
  constexpr auto kCauseGrace = std::chrono::seconds(10);
  if (context.ranks_in_process() == 1) EnterOnce(ending);
  if (!failure.is_consequence) ending.has_cause = true;
  AddFlight(context, &failure);
  // Once the run has started, only these two are the same on all ranks; the abort folder says which
  // rank failed first in all other cases.
  if (abort_dir.empty() || failure.code == ExitCode::kUsage ||
      failure.code == ExitCode::kNoUsableCheckpoint)
    LetRankZeroReport(context.rank(), failure.code);
  // Without an abort folder rank 0 reports first. Among the ranks of one process, the one that
  // failed first reports, not those that failed because of it.
  const bool others_may_know = context.ranks_in_process() > 1 && failure.is_consequence;
  if (others_may_know || (context.rank() != 0 && abort_dir.empty()))
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (others_may_know && ending.has_cause) std::this_thread::sleep_for(kCauseGrace);
  const std::string words =
      train::RecordAbort(abort_dir, context.rank(), failure.text, failure.is_consequence);
  const std::lock_guard lock(ending.reporting);
  HL_ERROR("halflife", words);
  log::Flush();
  context.AbortWorld(static_cast<int>(failure.code));
  std::abort();  // not reached; gcc does not see [[noreturn]] through a virtual call
}

// Ends the process after some seconds, as a thread that hangs outside of a collective would never
// be joined.
void EndUnlessAllFollow(const Failure& failure) {
  static constexpr auto kGrace = std::chrono::seconds(5);
  std::thread([failure] {
    std::this_thread::sleep_for(kGrace);
    HL_ERROR("halflife", failure.text);
    log::Flush();
    ::_exit(static_cast<int>(failure.code));
  }).detach();
}

// Records the failure of one rank in a world of threads. The caller, which joins all threads,
// reports the first cause once.
void LeaveThreads(dist::RankContext& context, Failure failure,
                  const std::filesystem::path& abort_dir) {
  AddFlight(context, &failure);
  train::RecordAbort(abort_dir, context.rank(), failure.text, failure.is_consequence);
  if (!failure.is_consequence) EndUnlessAllFollow(failure);
}

// Called after a rank has failed, before its exception reaches the caller. May end the process.
using OnFailure = std::function<void(dist::RankContext& context, const Failure& failure,
                                     const std::filesystem::path& abort_dir)>;

ExitCode RunRank(dist::RankContext& context, const WorldBody& body, const OnFailure& on_failure) {
  std::filesystem::path abort_dir;
  try {
    const ExitCode code = body(context, abort_dir);
    context.flight().Discard();
    return code;
  } catch (...) {
    const Failure failure = DescribeFailure(std::current_exception());
    context.flight().Fail(failure.text);
    on_failure(context, failure, abort_dir);
    throw;
  }
}

}  // namespace

ExitCode RunInWorld(double timeout_s, const WorldBody& body, int ranks_here) {
  const BuildInfo build = GetBuildInfo();
  Ending ending;
  // The watchdog's thread must not read the body's abort folder. A flight record, which the body
  // keeps once it owns the run's folder, lies below this folder.
  const auto on_stuck = [&](dist::RankContext& context, const dist::CommFailure& failure) {
    context.flight().Fail(failure.text);
    EndWorld(context, FailureOfCollective(dist::CommError(failure)),
             context.flight().Folder().parent_path(), ending);
  };
  const dist::RankConfig config = {.timeout_s = timeout_s,
                                   .build = Concat("halflife ", build.version, " ", build.git_hash,
                                                   ", LibTorch ", TORCH_VERSION),
                                   .on_stuck = on_stuck};
  const LauncherEvidence evidence = ReadLauncherEvidence();
  // A write to the socket of a rank that has just died raises SIGPIPE, which would end this rank
  // before it reports the error.
  if (evidence.world_size > 1) std::signal(SIGPIPE, SIG_IGN);
  const auto on_failure = [&](dist::RankContext& context, const Failure& failure,
                              const std::filesystem::path& abort_dir) {
    const int others = context.world_size() - context.ranks_in_process();
    if (others > 0) EndWorld(context, failure, abort_dir, ending);
    if (context.world_size() > 1) LeaveThreads(context, failure, abort_dir);
  };
  if (ranks_here == 1) return RunRank(*dist::RankContext::Create(config), body, on_failure);

  ExitCode code = ExitCode::kFinished;  // all ranks return the same
  const auto run_rank = [&](dist::RankContext& context) {
    const ExitCode own = RunRank(context, body, on_failure);
    if (context.rank_in_process() == 0) code = own;
  };
  if (evidence.world_size == 1) {
    dist::RunLocalRanks(ranks_here, config, run_rank);
  } else {
    dist::RunMpiRanks(ranks_here, config, evidence, run_rank);
  }
  return code;
}

void WarnOfBusyCores(dist::RankContext& context) {
  for (const doctor::Finding& finding : doctor::CheckRankPlaces(doctor::CheckInputs{}, context)) {
    const bool knows_cores = finding.values.at("cores") > 0;
    if (finding.verdict == doctor::Verdict::kOk || !knows_cores) continue;
    HL_WARN("threads", "ranks: ", finding.text,
            ". They slow each other down. Use fewer ranks, or fewer threads for each.");
    return;
  }
}

void WarnOfBusyCores(int threads) {
  const int cores = NumUsableCores();
  if (threads <= cores) return;
  HL_WARN("threads", "--threads ", threads, " is more than the ", Counted(cores, "core"),
          " that this process may use. Use --threads ", cores, ".");
}

}  // namespace halflife::cli
