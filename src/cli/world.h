// Runs a command's body as one rank of a world. Builds the RankContext. On an error it reports the
// cause once and ends the whole world with the error's exit code, so that no rank waits in a
// collective for a dead one. Also warns if the ranks have more threads than cores.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>

#include "core/exit_code.h"
#include "dist/rank_context.h"

namespace halflife::cli {

// Translates an exception into the exit code of the program and a message for the user.
struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string text;
  bool is_consequence = false;  // A collective failed because another rank is gone.
};

// Converts an exception to a failure. An Error keeps its code, a file system error or lack of
// memory is kEnvironment, and any other exception is kInternal, a bug. The text omits LibTorch's
// stack trace.
Failure DescribeFailure(const std::exception_ptr& thrown);

// `timeout_s`: the limit of one collective, in seconds. The body sets `abort_dir` to the run's
// folder once it owns it. From then on the first rank that fails writes its error there for the
// others; before, the folder may belong to another job.
// `ranks_here`: the number of ranks that this process runs, one on each thread. Without a launcher
// they are the whole world.
using WorldBody =
    std::function<ExitCode(dist::RankContext& context, std::filesystem::path& abort_dir)>;
ExitCode RunInWorld(double timeout_s, const WorldBody& body, int ranks_here = 1);
// The `timeout_s` of commands whose ranks work independently until they combine their results: the
// ranks may end at any distance in time. A rank that fails still ends the others.
inline constexpr double kNoTimeout = std::numeric_limits<double>::infinity();

// Warnings about more threads than cores. The threads then wait for each other, and everything
// becomes slower.
//
//   WarnOfBusyCores(context);           // ranks of a world, after at::set_num_threads
//   WarnOfBusyCores(options.threads);   // one process with --threads
//
// Collective, after each rank has set its number of threads. Rank 0 warns once, about the first
// host on which the ranks have more threads than cores.
void WarnOfBusyCores(dist::RankContext& context);

// Warns if `threads`, the value of --threads, exceeds the cores that this process may use.
void WarnOfBusyCores(int threads);

}  // namespace halflife::cli
