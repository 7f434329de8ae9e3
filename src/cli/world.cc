#include "cli/world.h"

#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>

#include "cli/failure.h"
#include "core/log.h"
#include "core/version.h"
#include "dist/flight_report.h"
#include "dist/local_rank_context.h"
#include "dist/mpi_rank_context.h"
#include "train/record/run_folder.h"

namespace halflife::cli {
namespace {

// A collective that failed knows which ranks it waited for; their records, what these do instead.
void AddFlight(dist::RankContext& context, Failure* failure) {
  const std::filesystem::path record = context.flight().path();
  if (failure->code != ExitCode::kTimeout || record.empty()) return;
  const std::string late = dist::WhoIsLate(record.parent_path());
  if (late.empty()) return;
  failure->text +=
      Concat("; ", late, " (more: `halflife inspect ", record.parent_path().string(), "`)");
}

// What the ranks of this process, of several processes' world, know of each other's end.
struct Ending {
  std::atomic<bool> has_cause{false};  // one of them knows why, and will end the process
  std::mutex speaking;
};

// Tells the cause and ends the world. Does not return.
[[noreturn]] void EndWorld(dist::RankContext& context, Failure failure,
                           const std::filesystem::path& abort_dir, Ending& ending) {
  constexpr auto kCauseGrace = std::chrono::seconds(10);
  if (!failure.is_consequence) ending.has_cause = true;
  AddFlight(context, &failure);
  // What all ranks meet alike (a bad config) is told by rank 0 alone, which then ends the others;
  // and of a process's ranks the cause speaks, not what followed from it.
  const bool others_may_know = context.ranks_in_process() > 1 && failure.is_consequence;
  if (others_may_know || (context.rank() != 0 && abort_dir.empty()))
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (others_may_know && ending.has_cause) std::this_thread::sleep_for(kCauseGrace);
  const std::string words =
      train::RecordAbort(abort_dir, context.rank(), failure.text, failure.is_consequence);
  const std::lock_guard lock(ending.speaking);
  HL_ERROR("halflife", words);
  log::Flush();
  context.AbortWorld(static_cast<int>(failure.code));
  std::abort();  // not reached; gcc does not see [[noreturn]] through a virtual call
}

// A thread that hangs outside of a collective would be waited for, for ever.
void EndUnlessAllFollow(const Failure& failure) {
  static constexpr auto kGrace = std::chrono::seconds(5);
  std::thread([failure] {
    std::this_thread::sleep_for(kGrace);
    HL_ERROR("halflife", failure.text);
    log::Flush();
    ::_exit(static_cast<int>(failure.code));
  }).detach();
}

// One rank of a world of threads leaves its words: the caller of them all tells the cause, once.
void LeaveThreads(dist::RankContext& context, Failure failure,
                  const std::filesystem::path& abort_dir) {
  AddFlight(context, &failure);
  train::RecordAbort(abort_dir, context.rank(), failure.text, failure.is_consequence);
  if (!failure.is_consequence) EndUnlessAllFollow(failure);
}

// What else is done of a rank's failure, before its caller meets what it threw; may end the
// process.
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
  const dist::RankConfig config = {.timeout_s = timeout_s,
                                   .build = Concat("halflife ", build.version, " ", build.git_hash,
                                                   ", LibTorch ", TORCH_VERSION)};
  const LauncherEvidence evidence = ReadLauncherEvidence();
  // A rank that writes to the socket of one that has just died would end by the signal, before it
  // can say why.
  if (evidence.world_size > 1) std::signal(SIGPIPE, SIG_IGN);
  Ending ending;
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

}  // namespace halflife::cli
