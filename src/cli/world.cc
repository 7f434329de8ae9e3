#include "cli/world.h"

#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
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

// Of the ranks of this process.
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

// One rank of several processes, or of one that is alone: what it throws there its caller tells.
ExitCode RunRank(dist::RankContext& context, const WorldBody& body, Ending& ending) {
  // A rank that writes to the socket of one that has just died would end by the signal, before it
  // can say why.
  if (context.world_size() > 1) std::signal(SIGPIPE, SIG_IGN);
  std::exception_ptr thrown;
  std::filesystem::path abort_dir;
  try {
    const ExitCode code = body(context, abort_dir);
    context.flight().Discard();
    return code;
  } catch (...) {
    context.flight().Fail(DescribeFailure(std::current_exception()).text);
    if (context.world_size() == 1) throw;
    thrown = std::current_exception();
  }
  EndWorld(context, DescribeFailure(thrown), abort_dir, ending);
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

// One rank of a world of threads.
ExitCode RunThread(dist::RankContext& context, const WorldBody& body, Ending&) {
  std::filesystem::path abort_dir;
  try {
    const ExitCode code = body(context, abort_dir);
    context.flight().Discard();
    return code;
  } catch (...) {  // the caller speaks of it, once
    Failure failure = DescribeFailure(std::current_exception());
    context.flight().Fail(failure.text);
    AddFlight(context, &failure);
    train::RecordAbort(abort_dir, context.rank(), failure.text, failure.is_consequence);
    if (!failure.is_consequence) EndUnlessAllFollow(failure);
    throw;
  }
}

}  // namespace

ExitCode RunInWorld(double timeout_s, const WorldBody& body, int ranks_here) {
  const BuildInfo build = GetBuildInfo();
  const dist::RankConfig config = {.timeout_s = timeout_s,
                                   .build = Concat("halflife ", build.version, " ", build.git_hash,
                                                   ", LibTorch ", TORCH_VERSION)};
  Ending ending;
  if (ranks_here == 1) return RunRank(*dist::RankContext::Create(config), body, ending);
  const LauncherEvidence evidence = ReadLauncherEvidence();
  ExitCode code = ExitCode::kFinished;  // all ranks return the same
  const auto run_with = [&](const auto& run_one) {
    return [&](dist::RankContext& context) {
      const ExitCode own = run_one(context, body, ending);
      if (context.rank_in_process() == 0) code = own;
    };
  };
  if (evidence.world_size == 1) {
    dist::RunLocalRanks(ranks_here, config, run_with(RunThread));
  } else {
    dist::RunMpiRanks(ranks_here, config, evidence, run_with(RunRank));
  }
  return code;
}

}  // namespace halflife::cli
