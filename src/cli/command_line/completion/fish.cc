#include <sstream>

#include "cli/command_line/completion/shells.h"
#include "core/concat.h"

namespace halflife::cli::completion {
namespace {

constexpr char kFishHead[] = R"(# fish completion for halflife, made by `halflife completion fish`.
function __halflife_at  # whether the words so far lead to this subcommand
  set -l at
  for word in (commandline -opc)[2..-1]
    switch "$at/$word"
      case )";

constexpr char kFishMiddle[] = R"(
        set at "$at/$word"
    end
  end
  test "$at" = "$argv[1]"
end
complete -c halflife -f
)";

std::string FishQuoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

// The arguments of `complete` that offer such a value; `needs`: it must follow its option.
std::string FishOffer(const OptionValue& value, bool needs) {
  const std::string only = needs ? " -x" : "";
  if (!value.choices.empty()) return Concat(only, " -a ", FishQuoted(Joined(value.choices, " ")));
  if (value.path == OptionValue::Path::kAny) return needs ? " -r -F" : " -F";
  if (value.path == OptionValue::Path::kFolder) return only + " -a '(__fish_complete_directories)'";
  return only;
}

std::string FishNames(const Option& option) {
  std::string text;
  for (const std::string& name : option.names) {
    text +=
        name.starts_with("--") ? Concat(" -l ", name.substr(2)) : Concat(" -s ", name.substr(1));
  }
  return text;
}

}  // namespace

std::string FishScript(const Node& root) {
  std::ostringstream out;
  const std::vector<const Node*> nodes = AllNodes(root);
  std::vector<std::string> paths;
  for (size_t i = 1; i < nodes.size(); ++i) paths.push_back(nodes[i]->path);
  out << kFishHead << Joined(paths, " ") << kFishMiddle;
  for (const Node* node : nodes) {
    const std::string here = Concat("complete -c halflife -n ",
                                    FishQuoted(Concat("__halflife_at \"", node->path, "\"")));
    for (const Node& command : node->subcommands) {
      out << here << " -a " << command.name << " -d " << FishQuoted(command.description) << "\n";
    }
    for (const Option& option : node->options) {
      out << here << FishNames(option)
          << (option.value.placeholder.empty() ? "" : FishOffer(option.value, true)) << " -d "
          << FishQuoted(option.description) << "\n";
    }
    const std::string positional = FishOffer(node->positional, false);
    if (!positional.empty()) out << here << positional << "\n";
  }
  return out.str();
}

}  // namespace halflife::cli::completion
