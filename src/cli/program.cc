#include "cli/program.h"

#include <CLI/CLI.hpp>

#include "core/concat.h"
#include "core/version.h"

namespace halflife::cli {
namespace {

using AddCommand = void (*)(CLI::App&, Action&);
constexpr AddCommand kCommands[] = {
#define HL_COMMAND(Name) &Add##Name,
#include "cli/commands.inc"
#undef HL_COMMAND
};

constexpr char kWayThrough[] = R"(From text to text:
  halflife prepare --input texts/ --tokenizer bytes --out datasets/mine
  halflife train --config launch/recipes/quickstart.textproto --set data.path=datasets/mine \
      --run runs/first
  halflife eval --model runs/first --data datasets/mine
  halflife generate --model runs/first --prompt 'Once upon a time'

On 8 ranks: launch/mpirun/run.sh --ranks 8 -- halflife train ...
Each subcommand has its own --help, with options, examples and exit codes.

Exit codes:
)";

}  // namespace

std::unique_ptr<CLI::App> MakeProgram(Action& action) {
  auto app = std::make_unique<CLI::App>("halflife trains language models built on linear attention",
                                        "halflife");
  app->formatter(std::static_pointer_cast<CLI::FormatterBase>(MakeHelpFormatter()));
  app->require_subcommand(1);
  const BuildInfo build = GetBuildInfo();
  app->set_help_flag("-h,--help", "Print this help and exit");
  app->set_version_flag(
      "--version", Concat(build.version, " ", build.git_hash, build.git_dirty ? " (modified)" : ""),
      "Print the version and exit");
  for (const AddCommand add : kCommands) add(*app, action);
  std::string footer = kWayThrough + ExitCodeLines(AllExitCodes());
  footer.pop_back();    // CLI11 ends the footer
  app->footer(footer);  // now: a subcommand that is made later inherits it
  return app;
}

}  // namespace halflife::cli
