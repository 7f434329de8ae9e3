// Runs a command's body as one rank of a world: builds the RankContext, and on an error tells the
// cause once and ends the whole world with the error's exit code, so that no rank waits in a
// collective for a dead one.
#pragma once

#include <filesystem>
#include <functional>

#include "core/exit_code.h"
#include "dist/rank_context.h"

namespace halflife::cli {

// `run_dir` (may be empty): where the first failing rank leaves its words for the others. `timeout_s`: of one collective.
ExitCode RunInWorld(double timeout_s, const std::filesystem::path& run_dir,
                    const std::function<ExitCode(dist::RankContext&)>& body);

}  // namespace halflife::cli
