// Shell completion, made from CLI11's own tree of subcommands and options: there is no second list.
//
// A shell is a function here and a row in completion.cc's table.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/command_line/help.h"

namespace CLI {
class App;
}

namespace halflife::cli::completion {

struct Option {
  std::vector<std::string> names;  // "-h", "--help"
  std::string description;
  OptionValue value;  // no placeholder: a flag
};

// The program (path "") or one subcommand ("/train", "/ckpt/ls").
struct Node {
  std::string path, name, description;
  std::vector<Node> subcommands;
  std::vector<Option> options;
  OptionValue positional;  // of the words that are no options
};
Node TreeOf(const CLI::App& program);

// The node and all below it, in order.
std::vector<const Node*> AllNodes(const Node& root);

std::string BashScript(const Node& root);
std::string ZshScript(const Node& root);
std::string FishScript(const Node& root);

struct Shell {
  const char* name;
  std::string (*script)(const Node& root);
};
std::span<const Shell> Shells();

// Shared by the three shells: words in single quotes, and lists of them.
std::string Joined(const std::vector<std::string>& words, const char* separator);

}  // namespace halflife::cli::completion
