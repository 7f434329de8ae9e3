// halflife completion: prints a script that completes subcommands, options and values in a shell.
// The script asks this program for the candidates, so that there is no second list of options.
#include <iostream>

#include "cli/command_line/declare.h"
#include "cli/command_line/program.h"

namespace halflife::cli {
namespace {

struct Shell {
  const char *name, *script;
};
constexpr Shell kShells[] = {
    {"bash", R"sh(# bash completion for halflife, made by `halflife completion bash`.
_halflife() {
  local program=${COMP_WORDS[0]/#\~/$HOME} cur=${COMP_WORDS[COMP_CWORD]} line words=''
  [[ $cur != = ]] || cur=''  # --option=value comes as three words.
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :files | :folders)
        compopt -o filenames 2>/dev/null || true  # Quotes spaces, and ends folders in a slash.
        [[ $line == :files ]] && mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        [[ $line == :folders ]] && mapfile -t COMPREPLY < <(compgen -d -- "$cur")
        return 0
        ;;
      *) words+=" ${line%%$'\t'*}" ;;
    esac
  done < <("$program" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -F _halflife halflife
)sh"},
    {"zsh", R"sh(#compdef halflife
# zsh completion for halflife, made by `halflife completion zsh`.
_halflife() {
  local line
  local -a entries
  for line in ${(f)"$(${~words[1]} completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
    case $line in
      :files | :folders)
        if [[ $words[CURRENT] == --*=* ]]; then compset -P '*='; fi
        if [[ $line == :files ]]; then _files; else _files -/; fi
        return
        ;;
      *) entries+=("${line/$'\t'/:}") ;;
    esac
  done
  _describe 'halflife' entries
}
if [[ ${funcstack[1]} == _halflife ]]; then  # Autoloaded from a folder of $fpath.
  _halflife "$@"
else
  compdef _halflife halflife
fi
)sh"},
    {"fish", R"sh(# fish completion for halflife, made by `halflife completion fish`.
function __halflife
  set -l words (commandline -opc)
  set -l token (commandline -ct)
  set -l option (string match -r '^--[^=]*=' -- "$token")
  for line in ($words[1] completion fish -- $words[2..-1] "$token" 2>/dev/null)
    switch $line
      case :files
        printf '%s\n' "$option"(__fish_complete_path (string replace -- "$option" '' "$token"))
      case :folders
        printf '%s\n' "$option"(__fish_complete_directories (string replace -- "$option" '' "$token") '')
      case '*'
        echo $line
    end
  end
end
complete -c halflife -f -a '(__halflife)'
)sh"},
};

std::string Line(const std::string& word, const std::string& description) {
  return Concat(word, "\t", description, "\n");
}

// Returns a line for each choice, or the kind of path that a shell completes. `prefix` is the part
// of the completed word that precedes the value.
std::string ValueLines(const CLI::Option& option, const std::string& prefix) {
  const OptionValue value = ValueOf(option);
  if (value.path == OptionValue::Path::kAny) return ":files\n";
  if (value.path == OptionValue::Path::kFolder) return ":folders\n";
  std::string lines;
  for (const std::string& choice : value.choices) lines += prefix + choice + "\n";
  return lines;
}

// Returns the option that takes the last word as its value, or null. Bash passes "--option=value"
// as three words.
const CLI::Option* OptionBefore(const CLI::App& command, const std::vector<std::string>& words) {
  size_t at = words.size() - 1;
  if (words[at] != "=" && at > 0) --at;
  if (words[at] == "=" && at > 0) --at;
  const CLI::Option* const option =
      at + 1 < words.size() ? command.get_option_no_throw(words[at]) : nullptr;
  const bool takes_value = option != nullptr && !ValueOf(*option).placeholder.empty();
  return takes_value && !option->get_positional() ? option : nullptr;
}

}  // namespace

std::string CompletionCandidates(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  for (size_t i = 0; i + 1 < words.size(); ++i)
    for (const CLI::App* sub : command->get_subcommands({}))
      if (sub->get_name() == words[i]) {
        command = sub;
        break;
      }
  const std::string& last = words.back();
  if (const CLI::Option* const option = OptionBefore(*command, words))
    return ValueLines(*option, "");
  const size_t equals = last.find('=');
  if (last.starts_with("--") && equals != std::string::npos) {
    const CLI::Option* const option = command->get_option_no_throw(last.substr(0, equals));
    return option == nullptr ? "" : ValueLines(*option, last.substr(0, equals + 1));
  }
  std::string lines;
  if (last.starts_with('-')) {
    for (const CLI::Option* option : command->get_options()) {
      const std::string help = option->get_description();
      for (const std::string& name : option->get_snames()) lines += Line("-" + name, help);
      for (const std::string& name : option->get_lnames()) lines += Line("--" + name, help);
    }
    return lines;
  }
  for (const CLI::App* sub : command->get_subcommands({}))
    lines += Line(sub->get_name(), sub->get_description());
  for (const CLI::Option* option : command->get_options())
    if (lines.empty() && option->get_positional()) lines = ValueLines(*option, "");
  return lines;
}

void AddCompletion(CLI::App& app, Request& request) {
  std::vector<std::string> names;
  for (const Shell& shell : kShells) names.emplace_back(shell.name);
  auto [command, options] = AddSubcommand<CompletionOptions>(
      app, request, "completion", "Print a shell's completion script",
      {.notes = "For the current shell: source <(halflife completion bash), or in fish "
                "halflife completion fish | source. Permanently: add that line to ~/.bashrc, "
                "~/.zshrc (after compinit) or ~/.config/fish/config.fish.",
       .examples = {"halflife completion bash"},
       .exit_codes = {}});
  OptionDeclarer declare(command);
  declare.Required("SHELL", options.shell, "The shell: bash, zsh or fish", OneOf(names));
  declare("WORDS", options.words,
          "Used by the script, after --: print the candidates for the last of these words [the "
          "script]");
}

// Implemented here, not with the other subcommands, because a shell runs it at every start and it
// must not load LibTorch.
ExitCode Run(const CompletionOptions& options) {
  Request ignored;
  if (!options.words.empty())
    std::cout << CompletionCandidates(*MakeProgram(ignored), options.words);
  for (const Shell& shell : kShells)
    if (options.words.empty() && options.shell == shell.name) std::cout << shell.script;
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
