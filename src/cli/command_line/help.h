// What `--help` looks like: options with the form of their value, their limits and default; then
// notes, examples that work, and the exit codes to expect.
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
}  // namespace CLI

namespace halflife::cli {

// The help of --model, wherever a subcommand takes one.
inline constexpr char kModelHelp[] =
    "A run (its newest step), RUN@best or RUN@1200, a step's folder, or a Hugging Face folder";

struct Use {
  std::string table = {};             // lines as they are
  std::string notes = {};             // a paragraph, broken into lines where it is shown
  std::vector<std::string> examples;  // shell commands
  std::vector<ExitCode> exit_codes;   // beside 0, 2 and 70, which every subcommand may end with
};
// Sets the command's footer.
void DescribeUse(CLI::App& command, const Use& use);

// "  4  environment: GPU, MPI, ..." for each, in ascending order.
std::string ExitCodeLines(std::vector<ExitCode> codes);
std::vector<ExitCode> AllExitCodes();

// Breaks at spaces so that no line exceeds `width`; lines after the first begin with `indent`
// spaces. A word that is longer stays whole.
std::string WrapText(const std::string& text, size_t first_width, size_t width, size_t indent);

// Subcommands inherit it from the program.
std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter();

}  // namespace halflife::cli
