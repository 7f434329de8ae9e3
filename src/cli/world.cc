#include "cli/world.h"

#include <torch/version.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "cli/failure.h"
#include "core/log.h"
#include "core/version.h"
#include "train/record/run_folder.h"

namespace halflife::cli {
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
    return body(*context, abort_dir);
  } catch (...) {
    if (context->world_size() == 1) throw;
    thrown = std::current_exception();
  }
  const Failure failure = DescribeFailure(thrown);
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

}  // namespace halflife::cli
