#include "cli/command_line/program.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/error.h"
#include "core/nearest.h"
#include "core/versions.h"

namespace halflife::cli {
namespace {

using AddCommand = void (*)(CLI::App&, Request&);
constexpr AddCommand kCommands[] = {
#define HL_COMMAND(Name) &Add##Name,
#include "cli/command_line/commands.inc"
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

std::vector<std::string> SubcommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void CheckWords(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  for (const std::string& word : words) {
    if (word == "--") return;  // Only values follow.
    const std::vector<std::string> subcommands = SubcommandsOf(*command);
    if (word.starts_with("--")) {
      const std::string name = word.substr(0, word.find('='));
      const std::vector<std::string> options = OptionsOf(*command);
      HL_CHECK_AS(ExitCode::kUsage, Contains(options, name), "'", name, "' is not an option of `",
                  path, "`", DidYouMean(name, options), "\n`", path, " --help` lists all options");
    } else if (!subcommands.empty() && !word.starts_with('-')) {
      HL_CHECK_AS(ExitCode::kUsage, Contains(subcommands, word), "'", word,
                  "' is not a subcommand of `", path, "`", DidYouMean(word, subcommands),
                  "\nThere are ", Join(subcommands, ", "));
      command = command->get_subcommand(word);
      path += " " + word;
    }
  }
}

std::unique_ptr<CLI::App> MakeProgram(Request& request) {
  auto app = std::make_unique<CLI::App>("halflife trains language models built on linear attention",
                                        "halflife");
  app->formatter(std::static_pointer_cast<CLI::FormatterBase>(MakeHelpFormatter()));
  app->require_subcommand(1);
  const BuildInfo build = GetBuildInfo();
  app->set_help_flag("-h,--help", "Print this help and exit");
  app->set_version_flag(
      "--version", Concat(build.version, " ", build.git_hash, build.git_dirty ? " (modified)" : ""),
      "Print the version and exit");
  for (const AddCommand add : kCommands) add(*app, request);
  std::string footer = kWayThrough + ExitCodeLines(AllExitCodes());
  footer.pop_back();    // CLI11 adds the last line break.
  app->footer(footer);  // Set it now: later subcommands inherit it.
  return app;
}

}  // namespace halflife::cli
