// The format of `--help`: options with the form of their value, range and default, then notes,
// examples and exit codes.
//
//   DescribeUse(*command, {.notes = "STEP is a step folder.",
//                          .examples = {"halflife ckpt verify runs/first"},
//                          .exit_codes = {ExitCode::kDifference}});
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/exit_code.h"

namespace CLI {
class App;
class FormatterBase;
class Option;
}  // namespace CLI

namespace halflife::cli {

// The form of an option's value, derived from CLI11's data about the option. --help shows it behind
// the name, and shell completion offers it. The type name comes first (`type_name("RUN")`), then
// the descriptions of the validators: a list of choices in braces, or a range.
struct OptionValue {
  enum class Path { kNone, kFolder, kAny };  // The kind of path that a shell completes.
  std::string placeholder;                   // "RUN", "N", "auto|file". Empty: a flag.
  std::vector<std::string> choices;
  std::string range;  // "1 to 256". Empty: none, or not useful.
  Path path = Path::kNone;
};
OptionValue ValueOf(const CLI::Option& option);
// Returns for example "--config RECIPE", "--dry-run" or "STEP".
std::string UsageOf(const CLI::Option& option);

struct Use {
  std::string table = {};             // Lines that are not wrapped.
  std::string notes = {};             // A paragraph, which is wrapped.
  std::vector<std::string> examples;  // Shell commands.
  // In addition to 0, 2 and 70, which every subcommand may return.
  std::vector<ExitCode> exit_codes;
};
// Sets the command's footer.
void DescribeUse(CLI::App& command, const Use& use);

// Returns a line like "  4  environment: GPU, MPI, ..." for each code, in ascending order.
std::string ExitCodeLines(std::vector<ExitCode> codes);
std::vector<ExitCode> AllExitCodes();

// Wraps at spaces so that no line exceeds `width`. Lines after the first are indented by `indent`
// spaces. A longer word is not broken.
std::string WrapText(const std::string& text, size_t first_width, size_t width, size_t indent);

// Subcommands inherit it from the program.
std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter();

}  // namespace halflife::cli
