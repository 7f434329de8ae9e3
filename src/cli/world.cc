#include "cli/world.h"

#include <torch/version.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "cli/failure.h"
#include "core/log.h"
#include "core/version.h"
#include "dist/flight_report.h"
#include "dist/local_rank_context.h"
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

}  // namespace

ExitCode RunInWorld(double timeout_s, const WorldBody& body) {
  const BuildInfo build = GetBuildInfo();
  const std::unique_ptr<dist::RankContext> context =
      dist::RankContext::Create({.timeout_s = timeout_s,
                                 .build = Concat("halflife ", build.version, " ", build.git_hash,
                                                 ", LibTorch ", TORCH_VERSION)});
  // A rank that writes to the socket of one that has just died would end by the signal, before it
  // can say why.
  if (context->world_size() > 1) std::signal(SIGPIPE, SIG_IGN);
  std::exception_ptr thrown;
  std::filesystem::path abort_dir;
  try {
    const ExitCode code = body(*context, abort_dir);
    context->flight().Discard();
    return code;
  } catch (...) {
    context->flight().Fail(DescribeFailure(std::current_exception()).text);
    if (context->world_size() == 1) throw;
    thrown = std::current_exception();
  }
  Failure failure = DescribeFailure(thrown);
  AddFlight(*context, &failure);
  // What all ranks meet alike (a bad config) is told by rank 0 alone, which then ends the others.
  if (context->rank() != 0 && abort_dir.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  HL_ERROR("halflife",
           train::RecordAbort(abort_dir, context->rank(), failure.text, failure.is_consequence));
  log::Flush();
  context->AbortWorld(static_cast<int>(failure.code));
  std::abort();  // not reached; gcc does not see [[noreturn]] through a virtual call
}

ExitCode RunOnLocalRanks(int num_ranks, double timeout_s, const WorldBody& body) {
  const LauncherEvidence evidence = ReadLauncherEvidence();
  HL_CHECK_AS(ExitCode::kUsage, evidence.world_size == 1, "--local-ranks ", num_ranks,
              " in one of ", evidence.world_size,
              " processes that a launcher started; either alone would work");
  ExitCode code = ExitCode::kFinished;  // all ranks return the same
  dist::RunLocalRanks(num_ranks, {.timeout_s = timeout_s}, [&](dist::RankContext& context) {
    std::filesystem::path abort_dir;
    try {
      const ExitCode own = body(context, abort_dir);
      if (context.rank() == 0) code = own;
      context.flight().Discard();
    } catch (...) {  // the caller speaks of it, once
      const Failure failure = DescribeFailure(std::current_exception());
      context.flight().Fail(failure.text);
      train::RecordAbort(abort_dir, context.rank(), failure.text, failure.is_consequence);
      throw;
    }
  });
  return code;
}

}  // namespace halflife::cli
