// Runs a command's body as one rank of a world. Builds the RankContext. On an error it reports the
// cause once and ends the whole world with the error's exit code, so that no rank waits in a
// collective for a dead one.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>

#include "core/exit_code.h"
#include "dist/rank_context.h"

namespace halflife::cli {

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

}  // namespace halflife::cli
