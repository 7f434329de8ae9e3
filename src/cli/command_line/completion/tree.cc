#include <CLI/CLI.hpp>

#include "cli/command_line/completion/shells.h"

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
