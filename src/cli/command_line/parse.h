// Parses argv into a Request, and prints help or errors.
//
//   Request request;
//   if (const auto code = ParseCommandLine(argc, argv, request)) return static_cast<int>(*code);
#pragma once

#include <optional>

#include "cli/command_line/options.h"
#include "core/exit_code.h"

namespace halflife::cli {

// Returns nullopt if the program should run `request`. Returns an exit code if help or the version
// was printed. Error kUsage for unknown words, with similar ones, and for invalid values or
// combinations, with the valid ones.
std::optional<ExitCode> ParseCommandLine(int argc, char** argv, Request& request);

}  // namespace halflife::cli
