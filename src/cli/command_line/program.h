// The whole command line: the program with all its subcommands and options. Parsing uses it; help,
// shell completion and their tests read it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command_line/command.h"

namespace halflife::cli {

// Parsing sets `request`, which must outlive the result.
std::unique_ptr<CLI::App> MakeProgram(Request& request);

// Error kUsage for the first word that is no subcommand, or no option of the one before it, with
// those that were probably meant. CLI11 would tell what it misses for want of that word.
void CheckWords(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace halflife::cli
