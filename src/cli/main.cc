// The `halflife` program: parses the command line, runs one subcommand, turns errors into exit
// codes.
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <iostream>

#include "cli/failure.h"
#include "cli/program.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "dist/rank_context.h"

namespace halflife::cli {
namespace {

int Main(int argc, char** argv) {
  const dist::LauncherEvidence evidence = dist::ReadLauncherEvidence();
  log::Init({.rank = evidence.rank, .world_size = evidence.world_size});
  Action action;
  const std::unique_ptr<CLI::App> app = MakeProgram(action);
  try {
    try {
      app->parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() != 0) CheckWords(*app, {argv + 1, argv + argc});
      return app->exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
    }
    const char* fault_spec = std::getenv("HL_FAULT");
    fault::Arm(fault_spec == nullptr ? "" : fault_spec, evidence.rank);
    return static_cast<int>(action());
  } catch (...) {
    const Failure failure = DescribeFailure(std::current_exception());
    HL_ERROR("halflife", failure.text);
    return static_cast<int>(failure.code);
  }
}

}  // namespace
}  // namespace halflife::cli

int main(int argc, char** argv) { return halflife::cli::Main(argc, argv); }
