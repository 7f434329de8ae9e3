// Makes argv a Request, and says all that is to be said on the way.
//
//   Request request;
//   if (const auto code = ParseCommandLine(argc, argv, request)) return static_cast<int>(*code);
#pragma once

#include <optional>

#include "cli/command_line/options.h"
#include "core/exit_code.h"

namespace halflife::cli {

// nullopt: go on with `request`. Else help or the version was printed, and that is the exit code.
// Error kUsage: a word that is unknown, with those that were probably meant; a value, or words
// together, that are refused, with what would work.
std::optional<ExitCode> ParseCommandLine(int argc, char** argv, Request& request);

}  // namespace halflife::cli
