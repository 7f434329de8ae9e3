// The `halflife` program: parses the command line, runs one subcommand, turns errors into exit
// codes.
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <iostream>

#include "cli/program.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "dist/rank_context.h"

namespace halflife::cli {
namespace {

// CLI11 says "a subcommand is required" for an unknown one; this says which was met and which there are.
void CheckSubcommand(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  const std::vector<const CLI::App*> commands = app.get_subcommands({});
  for (const CLI::App* command : commands) {
    if (command->get_name() == argv[1]) return;
  }
  const auto name = [](const CLI::App* command) { return command->get_name(); };
  HL_FAIL(ExitCode::kUsage, "'", argv[1], "' is no subcommand; there are ",
          Join(commands, ", ", name));
}

int Main(int argc, char** argv) {
  const dist::LauncherEvidence evidence = dist::ReadLauncherEvidence();
  log::Init({.rank = evidence.rank, .world_size = evidence.world_size});
  Action action;
  const std::unique_ptr<CLI::App> app = MakeProgram(action);
  try {
    CheckSubcommand(*app, argc, argv);
    try {
      app->parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app->exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
    }
    const char* fault_spec = std::getenv("HL_FAULT");
    fault::Arm(fault_spec == nullptr ? "" : fault_spec, evidence.rank);
    return static_cast<int>(action());
  } catch (const Error& error) {
    HL_ERROR("halflife", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    HL_ERROR("halflife", "internal fault: ", error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

}  // namespace
}  // namespace halflife::cli

int main(int argc, char** argv) { return halflife::cli::Main(argc, argv); }
