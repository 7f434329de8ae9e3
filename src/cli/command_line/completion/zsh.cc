#include <sstream>

#include "cli/command_line/completion/shells.h"
#include "core/concat.h"

namespace halflife::cli::completion {
namespace {

constexpr char kZshHead[] = R"(#compdef halflife
# zsh completion for halflife, made by `halflife completion zsh`.
_halflife() {
  local at='' before=$words[CURRENT-1] i
  local -a entries
  for ((i = 2; i < CURRENT; i++)); do
    case $at/$words[i] in
)";

constexpr char kZshTail[] = R"(
if [[ ${funcstack[1]} == _halflife ]]; then  # autoloaded from a folder of $fpath
  _halflife "$@"
else
  compdef _halflife halflife
fi
)";

std::string ZshQuoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string ZshOffer(const OptionValue& value) {
  if (!value.choices.empty()) return Concat("compadd -- ", Joined(value.choices, " "));
  if (value.path == OptionValue::Path::kAny) return "_files";
  if (value.path == OptionValue::Path::kFolder) return "_files -/";
  return ":";
}

// entries=('--config:The recipe' ...); _describe
std::string ZshDescribe(const char* what, const std::vector<std::string>& entries) {
  return Concat("entries=(", Joined(entries, " "), "); _describe ", what, " entries");
}

std::string ZshOptions(const Node& node) {
  std::vector<std::string> entries;
  for (const Option& option : node.options) {
    for (const std::string& name : option.names) {
      entries.push_back(ZshQuoted(name + ":" + option.description));
    }
  }
  return ZshDescribe("option", entries);
}

std::string ZshWords(const Node& node) {
  if (node.subcommands.empty()) return ZshOffer(node.positional);
  std::vector<std::string> entries;
  for (const Node& command : node.subcommands) {
    entries.push_back(ZshQuoted(command.name + ":" + command.description));
  }
  return ZshDescribe("subcommand", entries);
}

}  // namespace

std::string ZshScript(const Node& root) {
  std::ostringstream out;
  const std::vector<const Node*> nodes = AllNodes(root);
  std::vector<std::string> paths;
  for (size_t i = 1; i < nodes.size(); ++i) paths.push_back(nodes[i]->path);
  out << kZshHead << "      (" << Joined(paths, "|") << ") at=$at/$words[i] ;;\n"
      << "    esac\n  done\n"
      << "  if [[ $words[CURRENT] == --*=* ]]; then\n"
      << "    before=${words[CURRENT]%%=*}\n    compset -P '*='\n  fi\n"
      << "  case $at:$before in  # the value of an option\n";
  for (const Node* node : nodes) {
    for (const Option& option : node->options) {
      if (option.value.placeholder.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) patterns.push_back(node->path + ":" + name);
      out << "    (" << Joined(patterns, "|") << ") " << ZshOffer(option.value) << "; return ;;\n";
    }
  }
  out << "  esac\n  if [[ $words[CURRENT] == -* ]]; then\n    case $at in\n";
  for (const Node* node : nodes) {
    out << "      ('" << node->path << "') " << ZshOptions(*node) << " ;;\n";
  }
  out << "    esac\n  else\n    case $at in\n";
  for (const Node* node : nodes)
    out << "      ('" << node->path << "') " << ZshWords(*node) << " ;;\n";
  out << "    esac\n  fi\n}\n" << kZshTail;
  return out.str();
}

}  // namespace halflife::cli::completion
