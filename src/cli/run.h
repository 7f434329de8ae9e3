// Runs the subcommands. Each is one file of this folder.
#pragma once

#include "cli/command_line/options.h"
#include "core/exit_code.h"

namespace halflife::cli {

#define HL_COMMAND(Name) ExitCode Run(const Name##Options& options);
#include "cli/command_line/commands.inc"
#undef HL_COMMAND

}  // namespace halflife::cli
