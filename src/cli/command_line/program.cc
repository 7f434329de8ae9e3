#include "cli/command_line/program.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "cli/command_line/declare.h"
#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "core/nearest.h"
#include "core/versions.h"

namespace halflife::cli {
namespace {

using AddCommand = void (*)(CLI::App&, Request&);
constexpr AddCommand kCommands[] = {
#define HL_ADD(Name) &Add##Name,
    HL_FOR_EACH_COMMAND(HL_ADD)
#undef HL_ADD
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

// Returns advice for the subcommands of other programs (litgpt, tune, lm_eval).
std::string Equivalent(const std::string& word) {
  static constexpr const char* kForeign[][2] = {
      {"chat", "generate --chat"},
      {"convert", "import"},
      {"download", "import --from FOLDER"},
      {"evaluate", "eval"},
      {"finetune", "train --init-from RUN"},
      {"finetune_full", "train --init-from RUN"},
      {"finetune_lora", "train --init-from RUN --set lora.rank=8"},
      {"infer", "generate"},
      {"merge_lora", "export"},
      {"plot", "report"},
      {"pretrain", "train"},
      {"sample", "generate"},
      {"tokenize", "prepare"},
  };
  for (const auto& [foreign, own] : kForeign)
    if (word == foreign) return Concat(". Use `halflife ", own, "`");
  return "";
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
      std::string hint = DidYouMean(name, options);
      if (hint.empty() && std::ranges::count(options, "--set") > 0)
        hint = ". Set fields of the recipe by --set, for example --set data.path=DATASET";
      HL_CHECK_AS(ExitCode::kUsage, std::ranges::count(options, name) > 0, "'", name,
                  "' is not an option of `", path, "`", hint, "\n`", path,
                  " --help` lists all options");
    } else if (!subcommands.empty() && !word.starts_with('-')) {
      const std::string own = command == &app ? Equivalent(word) : "";
      HL_CHECK_AS(ExitCode::kUsage, std::ranges::count(subcommands, word) > 0, "'", word,
                  "' is not a subcommand of `", path, "`",
                  own.empty() ? DidYouMean(word, subcommands) : own, "\nThe subcommands are ",
                  Join(subcommands, ", "));
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
      "--version",
      Concat("halflife ", build.version, " ", build.git_hash, build.git_dirty ? " (modified)" : "",
             "\nbuilt with ", HALFLIFE_BUILT_WITH,
             "\n`halflife doctor` prints the libraries that "
             "it runs with"),
      "Print the version, the commit and the libraries, and exit");
  for (const AddCommand add : kCommands) add(*app, request);
  std::string footer = kWayThrough + ExitCodeLines(AllExitCodes());
  footer.pop_back();    // CLI11 adds the last line break.
  app->footer(footer);  // Set it now: later subcommands inherit it.
  return app;
}

namespace {

// Describes the errors in a command's options, by kind of error.
class Findings {
 public:
  Findings(const CLI::App& command, const std::string& words)
      : command_(command), words_(words), options_(command.get_options()) {}

  std::string Missing() const {
    std::vector<std::string> missing;
    for (const CLI::Option* option : options_)
      if (option->get_required() && option->count() == 0)
        missing.push_back(Concat(UsageOf(*option), ": ", option->get_description()));
    if (!missing.empty()) return Concat("needs ", Join(missing, "; and "));
    return Concat("needs a subcommand: ", Join(SubcommandsOf(command_), ", "));
  }

  std::string Excludes() const {
    for (const CLI::Option* option : options_) {
      if (option->count() == 0) continue;
      for (const CLI::Option* other : option->get_excludes())
        if (other->count() > 0)
          return Concat(option->get_name(), " and ", other->get_name(),
                        " exclude each other. Use one of them.");
    }
    return words_;
  }

  // Describes the error of an option that has no effect without another one.
  std::string Requires() const {
    for (const CLI::Option* option : options_) {
      if (option->count() == 0) continue;
      for (const CLI::Option* needed : option->get_needs())
        if (needed->count() == 0) return DoesNothingWithout(*option, *needed);
    }
    return words_;
  }

  // Describes the error of too few or too many values.
  std::string Count() const {
    const CLI::Option* option = Named();
    if (option == nullptr) return words_;
    const auto met = static_cast<int>(option->count());
    const int least = std::max(option->get_items_expected_min(), 1);
    if (option->get_items_expected_max() == 0)
      return Concat(option->get_name(), " takes no value. Remove it.");
    if (words_.ends_with(" missing"))
      return Concat(option->get_name(), " has no value. Use ", UsageOf(*option), ".");
    return Concat(option->get_name(), " has ", Counted(met, "value"), " ('",
                  Join(option->results(), "', '"), "'). Give ",
                  met < least ? least : option->get_items_expected_max(), ".");
  }

  // Describes the error of a value that is not a number, or of a value for a flag.
  std::string Conversion() const {
    for (const CLI::Option* option : options_) {
      if (option->count() == 0) continue;
      const CLI::ConversionError would_say(option->get_name(), option->results());
      const bool is_flag = option->get_items_expected_max() == 0;
      if (words_ != would_say.what() && !(is_flag && option == Named())) continue;
      if (is_flag) return Concat(option->get_name(), " takes no value. Remove it.");
      return Concat(option->get_name(), ": ", ValueProblem(*option));
    }
    return words_;
  }

  // Describes the error of words that the command does not accept. A frequent one is a value
  // without its option.
  std::string Extras() const {
    const std::vector<std::string> extras = command_.remaining();
    if (extras.empty()) return words_;
    return Concat("does not accept '", Join(extras, "' '"), "'. Remove it",
                  extras[0].starts_with('-') ? "." : ", or write its option before it.");
  }

 private:
  // Returns the option that the error message begins with.
  const CLI::Option* Named() const {
    for (const CLI::Option* option : options_)
      if (words_.starts_with(option->get_name() + ":") ||
          words_.starts_with(option->get_name() + " "))
        return option;
    return nullptr;
  }

  static std::string ValueProblem(const CLI::Option& option) {
    const bool whole = !option.get_type_name().starts_with("FLOAT");
    const std::string works = Concat(". Use for example ", Example(option), ".");
    for (const std::string& result : option.results())
      if (const std::string problem = NumberProblem(result, whole); !problem.empty())
        return problem + works;
    return Concat("'", Join(option.results(), " "), "' is too large", works);
  }

  static std::string Example(const CLI::Option& option) {
    const std::string standard = option.get_default_str();
    return standard.empty() ? "1" : standard;
  }

  const CLI::App& command_;
  const std::string words_;  // The message of CLI11.
  const std::vector<const CLI::Option*> options_;
};

std::string Describe(const CLI::App& command, const CLI::ParseError& error) {
  const Findings findings(command, error.what());
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) return findings.Missing();
  if (dynamic_cast<const CLI::RequiresError*>(&error) != nullptr) return findings.Requires();
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) return findings.Excludes();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) return findings.Count();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) return findings.Conversion();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return findings.Extras();
  return error.what();  // From declare.h.
}

}  // namespace

void Refuse(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App* command = &program;
  std::string path = program.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().back();
    path += " " + command->get_name();
  }
  HL_FAIL(ExitCode::kUsage, "`", path, "` ", Describe(*command, error), "\n`", path,
          " --help` lists all options");
}

std::optional<ExitCode> ParseCommandLine(int argc, char** argv, Request& request) {
  const std::unique_ptr<CLI::App> program = MakeProgram(request);
  try {
    program->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      CheckWords(*program, {argv + 1, argv + argc});
      Refuse(*program, error);
    }
    program->exit(error);  // Prints the help or the version.
    return ExitCode::kFinished;
  }
  return std::nullopt;
}

ExitCode EndOutput(ExitCode code) {
  std::cout.flush();
  if (std::cout || code != ExitCode::kFinished) return code;
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return code;
  HL_ERROR("halflife", "cannot write to standard output. Check whether its disk is full.");
  return ExitCode::kEnvironment;
}

void LetRankZeroReport(int rank, ExitCode code) {
  // Longer than mpirun needs to kill a rank that handles SIGTERM (a second), and longer than the
  // difference between the ranks' start times on a busy machine.
  constexpr auto kWait = std::chrono::seconds(5);
  const bool likely_on_all_ranks = code == ExitCode::kUsage || code == ExitCode::kData ||
                                   code == ExitCode::kEnvironment ||
                                   code == ExitCode::kNoUsableCheckpoint;
  if (rank != 0 && likely_on_all_ranks) std::this_thread::sleep_for(kWait);
}

}  // namespace halflife::cli
