// halflife completion: prints a script that completes subcommands, options and values in a shell.
#include <CLI/CLI.hpp>

#include <iostream>

#include "cli/command_line/command.h"
#include "cli/command_line/completion/shells.h"
#include "cli/command_line/options.h"
#include "cli/command_line/program.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli::completion {
namespace {

constexpr Shell kShells[] = {{"bash", &BashScript}, {"zsh", &ZshScript}, {"fish", &FishScript}};

Node MakeNode(const CLI::App& app, const std::string& path) {
  Node node{path, app.get_name(), app.get_description(), {}, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      node.positional = ValueOf(*option);
      continue;
    }
    Option row{{}, option->get_description(), ValueOf(*option)};
    for (const std::string& name : option->get_snames()) row.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) row.names.push_back("--" + name);
    node.options.push_back(std::move(row));
  }
  for (const CLI::App* command : app.get_subcommands({})) {
    node.subcommands.push_back(MakeNode(*command, path + "/" + command->get_name()));
  }
  return node;
}

}  // namespace

Node TreeOf(const CLI::App& program) { return MakeNode(program, ""); }

std::vector<const Node*> AllNodes(const Node& root) {
  std::vector<const Node*> nodes = {&root};
  for (const Node& command : root.subcommands) {
    const std::vector<const Node*> below = AllNodes(command);
    nodes.insert(nodes.end(), below.begin(), below.end());
  }
  return nodes;
}

std::span<const Shell> Shells() { return kShells; }

std::string Joined(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

}  // namespace halflife::cli::completion

namespace halflife::cli {

void AddCompletion(CLI::App& app, Request& request) {
  auto options = std::make_shared<CompletionOptions>();
  CLI::App* command = app.add_subcommand("completion", "Print a shell's completion script");
  DescribeUse(
      *command,
      {.notes = "For the current shell: source <(halflife completion bash), or in fish "
                "halflife completion fish | source. Permanently: add that line to ~/.bashrc, "
                "~/.zshrc (after compinit) or ~/.config/fish/config.fish.",
       .examples = {"halflife completion bash"}});
  std::vector<std::string> names;
  for (const completion::Shell& row : completion::Shells()) names.push_back(row.name);
  command->add_option("SHELL", options->shell, "The shell: bash, zsh or fish")
      ->required()
      ->check(OneOf(names));
  command->callback([=, &request] { request = *options; });
}

// Implemented here, not with the other subcommands, because a shell runs it at every start and it
// must not load LibTorch.
ExitCode Run(const CompletionOptions& options) {
  Request ignored;
  const std::unique_ptr<CLI::App> program = MakeProgram(ignored);
  for (const completion::Shell& shell : completion::Shells()) {
    if (options.shell == shell.name) std::cout << shell.script(completion::TreeOf(*program));
  }
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
