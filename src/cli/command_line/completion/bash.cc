#include <sstream>

#include "cli/command_line/completion/shells.h"
#include "core/concat.h"

namespace halflife::cli::completion {
namespace {

constexpr char kBashHead[] = R"(# bash completion for halflife, made by `halflife completion bash`.
_halflife_offer() {  # what to offer for $cur: files, folders, or the words given
  local kind=$1
  shift
  case $kind in
    files) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    folders) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    words) mapfile -t COMPREPLY < <(compgen -W "$*" -- "$cur") ;;
  esac
  # quote spaces, end folders in a slash
  if [[ $kind != words ]]; then compopt -o filenames 2>/dev/null || true; fi
}

_halflife() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} at='' i
  COMPREPLY=()
  if [[ $cur == = ]]; then  # --option=value comes as three words
    cur=''
  elif [[ $prev == = ]] && ((COMP_CWORD >= 2)); then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case $at/${COMP_WORDS[i]} in
)";

// "_halflife_offer files", or nothing where any text may stand.
std::string BashOffer(const OptionValue& value) {
  if (!value.choices.empty()) return Concat("_halflife_offer words ", Joined(value.choices, " "));
  if (value.path == OptionValue::Path::kAny) return "_halflife_offer files";
  if (value.path == OptionValue::Path::kFolder) return "_halflife_offer folders";
  return ":";
}

std::vector<std::string> OptionNames(const Node& node) {
  std::vector<std::string> names;
  for (const Option& option : node.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::string BashWords(const Node& node) {
  if (node.subcommands.empty()) return BashOffer(node.positional);
  std::vector<std::string> names;
  for (const Node& command : node.subcommands) names.push_back(command.name);
  return Concat("_halflife_offer words ", Joined(names, " "));
}

}  // namespace

std::string BashScript(const Node& root) {
  std::ostringstream out;
  const std::vector<const Node*> nodes = AllNodes(root);
  std::vector<std::string> paths;
  for (size_t i = 1; i < nodes.size(); ++i) paths.push_back(nodes[i]->path);
  out << kBashHead << "      " << Joined(paths, " | ") << ") at=$at/${COMP_WORDS[i]} ;;\n"
      << "    esac\n  done\n  case $at:$prev in  # the value of an option\n";
  for (const Node* node : nodes) {
    for (const Option& option : node->options) {
      if (option.value.placeholder.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) patterns.push_back(node->path + ":" + name);
      out << "    " << Joined(patterns, " | ") << ") " << BashOffer(option.value)
          << "; return ;;\n";
    }
  }
  out << "  esac\n  if [[ $cur == -* ]]; then\n    case $at in\n";
  for (const Node* node : nodes) {
    out << "      '" << node->path << "') _halflife_offer words " << Joined(OptionNames(*node), " ")
        << " ;;\n";
  }
  out << "    esac\n  else\n    case $at in\n";
  for (const Node* node : nodes) {
    out << "      '" << node->path << "') " << BashWords(*node) << " ;;\n";
  }
  out << "    esac\n  fi\n}\ncomplete -F _halflife halflife\n";
  return out.str();
}

}  // namespace halflife::cli::completion
