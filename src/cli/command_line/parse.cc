#include "cli/command_line/parse.h"

#include <CLI/CLI.hpp>

#include "cli/command_line/program.h"
#include "cli/command_line/refusal.h"

namespace halflife::cli {

std::optional<ExitCode> ParseCommandLine(int argc, char** argv, Request& request) {
  const std::unique_ptr<CLI::App> program = MakeProgram(request);
  try {
    program->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      CheckWords(*program, {argv + 1, argv + argc});
      Refuse(*program, error);
    }
    program->exit(error);  // Prints the help or the version.
    return ExitCode::kFinished;
  }
  return std::nullopt;
}

}  // namespace halflife::cli
