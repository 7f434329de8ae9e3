// Runs a command's body as one rank of a world: builds the RankContext, and on an error tells the
// cause once and ends the whole world with the error's exit code, so that no rank waits in a
// collective for a dead one.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>

#include "core/exit_code.h"
#include "dist/rank_context.h"

namespace halflife::cli {

// `timeout_s`: of one collective. The body sets `abort_dir` to the run's folder once it owns it:
// from then on the first failing rank leaves its words there for the others (before, the folder may
// be another job's).
// `ranks_here`: how many ranks of the world this process is, on as many threads. Without a launcher
// they are the world.
using WorldBody =
    std::function<ExitCode(dist::RankContext& context, std::filesystem::path& abort_dir)>;
ExitCode RunInWorld(double timeout_s, const WorldBody& body, int ranks_here = 1);
// `timeout_s` of commands whose ranks work alone until their results meet: how far apart they end
// says nothing. A rank that fails still ends the others.
inline constexpr double kNoTimeout = std::numeric_limits<double>::infinity();

}  // namespace halflife::cli
