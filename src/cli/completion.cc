// halflife completion: a script that teaches a shell the subcommands, options and their values.
#include <CLI/CLI.hpp>

#include <iostream>

#include "cli/command.h"
#include "cli/completion/shells.h"
#include "core/error.h"

namespace halflife::cli {
namespace {

ExitCode Run(const CLI::App& program, const std::string& name) {
  for (const completion::Shell& shell : completion::Shells()) {
    if (name == shell.name) std::cout << shell.script(completion::TreeOf(program));
  }
  return ExitCode::kFinished;
}

}  // namespace

void AddCompletion(CLI::App& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print a shell's completion script");
  DescribeUse(*command,
              {.notes = "For this shell alone: source <(halflife completion bash), and in fish "
                        "halflife completion fish | source. For good: add that line to ~/.bashrc, "
                        "~/.zshrc (after compinit) or ~/.config/fish/config.fish.",
               .examples = {"halflife completion bash"}});
  std::vector<std::string> names;
  for (const completion::Shell& row : completion::Shells()) names.push_back(row.name);
  command->add_option("SHELL", *shell, "The shell: bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember(names));
  command->callback([=, &app, &action] { action = [=, &app] { return Run(app, *shell); }; });
}

}  // namespace halflife::cli
