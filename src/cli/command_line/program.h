// The whole command line: the program with all its subcommands and options. Parsing, help, shell
// completion and their tests use it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command_line/command.h"

namespace halflife::cli {

// Parsing sets `request`, which must outlive the result.
std::unique_ptr<CLI::App> MakeProgram(Request& request);

// Error kUsage for the first word that is not a subcommand, or not an option of the preceding one,
// with similar words. CLI11 itself would report only what is missing because of that word.
void CheckWords(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace halflife::cli
