// The whole command line: the program with all its subcommands and options. `main` parses with it;
// help, shell completion and their tests read it.
#pragma once

#include <memory>

#include "cli/command.h"

namespace halflife::cli {

// Parsing sets `action`, which must outlive the result.
std::unique_ptr<CLI::App> MakeProgram(Action& action);

}  // namespace halflife::cli
