// Declares the subcommands and their options in the form that --help shows. A subcommand consists
// of a struct and one line of HL_FOR_EACH_COMMAND in options.h, a function Add<Name> in this
// folder, and a function Run in the folder above. Help and shell completion are generated from the
// declarations.
//
//   void AddScore(CLI::App& app, Request& request) {
//     auto [command, options] = AddSubcommand<ScoreOptions>(
//         app, request, "score", "Write scores",
//         {.examples = {"halflife score ..."}, .exit_codes = {ExitCode::kData}});
//     OptionDeclarer declare(command);
//     declare.Required("--model RUN", options.model, kModelHelp);
//     declare("--piece", options.score.piece, "Tokens of one forward pass", AtLeast(1));
//     declare("--out FILE", options.out, "The file to write [none]");
//   }
//
// A value that is not plain text or a number has a type name after the option's name (help.h). The
// initial value of the target is the default, unless the description ends with "[...]".
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line/help.h"
#include "cli/command_line/options.h"
#include "core/concat.h"
#include "core/exit_code.h"
#include "data/tokenizer.h"

namespace halflife::cli {

#define HL_ADD(Name) void Add##Name(CLI::App& app, Request& request);
HL_FOR_EACH_COMMAND(HL_ADD)
#undef HL_ADD

// Checks of option values. Their errors name the value and the valid ones. (The errors of CLI11
// would contain the largest double.)
CLI::Validator AtLeast(int64_t least);  // A whole number.
CLI::Validator Between(int64_t least, int64_t most);
CLI::Validator NumThreads(int least);  // Up to kMaxThreads, like train.threads.
CLI::Validator BetweenNumbers(double least, double most);
CLI::Validator OneOf(std::vector<std::string> names);
// Like OneOf, and replaces the name by its value.
CLI::Validator NamedValue(const std::map<std::string, int64_t>& values);
// `wanted` is the correct form, for example "a run's folder".
CLI::Validator Folder(const std::string& wanted);
// Replaces "5GB" by the number of bytes.
CLI::Validator SizeInBytes();
// For an option without a check that needs a number. Returns for example "'x' is not a whole
// number", or "" if the text is a number.
std::string NumberProblem(const std::string& text, bool whole);

class OptionDeclarer {
 public:
  explicit OptionDeclarer(CLI::App& command) : command_(command) {}

  // Puts the options that follow below a headline of --help.
  void BeginGroup(const std::string& headline);
  // As BeginGroup. The first option that follows enables the others of the group: without it, they
  // would have no effect and are refused.
  void BeginMode(const std::string& headline);

  // `form`: "--out FILE", "--batch" or "PATH". A type name that ends in ",..." makes a list.
  template <typename Target>
  CLI::Option* operator()(const std::string& form, Target& target, const std::string& help,
                          const CLI::Validator& check = CLI::Validator()) {
    CLI::Option* const option = Required(form, target, help, check)->required(false);
    if (!help.ends_with(']')) CaptureDefault(*option);
    return option;
  }
  // `choices`: the values by name.
  template <typename Value>
  CLI::Option* operator()(const std::string& form, Value& target, const std::string& help,
                          const std::map<std::string, Value>& choices) {
    CLI::Option* const option = Choice(form, target, help, choices);
    for (const auto& [name, value] : choices)
      if (value == target) option->default_str(name);
    return option;
  }
  template <typename Value>
  CLI::Option* operator()(const std::string& form, std::optional<Value>& target,
                          const std::string& help, const std::map<std::string, Value>& choices) {
    return Choice(form, target, help, choices);
  }
  template <typename Target>
  CLI::Option* Required(const std::string& form, Target& target, const std::string& help,
                        const CLI::Validator& check = CLI::Validator()) {
    CLI::Option* const option =
        command_.add_option(form.substr(0, form.find(' ')), target, help)->required();
    option->transform(check);
    Finish(form, *option);
    return option;
  }
  CLI::Option* Flag(const std::string& name, bool& target, const std::string& help) {
    CLI::Option* const option = command_.add_flag(name, target, help);
    Finish(name, *option);
    return option;
  }

 private:
  template <typename Target, typename Value>
  CLI::Option* Choice(const std::string& form, Target& target, const std::string& help,
                      const std::map<std::string, Value>& choices) {
    std::map<std::string, int64_t> numbers;
    for (const auto& [name, value] : choices) numbers[name] = static_cast<int64_t>(value);
    return Required(form, target, help, NamedValue(numbers))->required(false);
  }
  static void CaptureDefault(CLI::Option& option);
  void Finish(const std::string& form, CLI::Option& option);

  CLI::App& command_;
  CLI::Option* mode_ = nullptr;  // The option that the group's other options need.
  bool begins_mode_ = false;
};

// Creates a subcommand. After parsing, `request` contains its options. Both references are valid as
// long as `app`.
template <typename Options>
struct NewSubcommand {
  CLI::App& command;
  Options& options;
};
template <typename Options>
NewSubcommand<Options> AddSubcommand(CLI::App& app, Request& request, const std::string& name,
                                     const std::string& summary, const Use& use) {
  auto options = std::make_shared<Options>();
  CLI::App* const command = app.add_subcommand(name, summary);
  DescribeUse(*command, use);
  command->callback([&request, options] { request = *options; });
  return {*command, *options};
}

// Refuses `mode` together with each of the other options.
void Exclude(CLI::App& command, const std::string& mode, const std::vector<std::string>& others);

// Call in parse_complete_callback(). Throws a CLI::ParseError for a given option of `names` if
// `mode` does not have this value: the option would have no effect.
void RequireValue(const CLI::App& command, const std::string& mode, const std::string& value,
                  const std::vector<std::string>& names);

// Returns for example "--pairs does nothing without --retrieval mqar. Use --retrieval mqar
// --lengths N,... with it.", which also names the options that `mode` needs. `value`: the value
// that `mode` must have. Empty: any.
std::string DoesNothingWithout(const CLI::Option& option, const CLI::Option& mode,
                               const std::string& value = "");

// Options that several subcommands share.
inline constexpr char kModelHelp[] =
    "A run (its newest step), RUN@best or RUN@1200, a step's folder, or a Hugging Face folder";
// Declares --tokenizer, for data::OpenTokenizer. `standard` describes its default, for example "the
// model's".
void AddTokenizer(OptionDeclarer& declare, std::string& tokenizer, const std::string& standard);
// Declares --weights, for a run with a moving average of its weights.
void AddWeights(OptionDeclarer& declare, std::string& weights);
// Declares --special-tokens for `texts`, for example "the prompt".
void AddSpecialTokens(OptionDeclarer& declare, data::SpecialTokens& special,
                      const std::string& texts);
// Declares --device and --precision.
void AddCompute(OptionDeclarer& declare, ComputeOptions& compute);

}  // namespace halflife::cli
