// halflife import: converts a Hugging Face folder to a run, to evaluate it or to continue training.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/value_checks.h"
#include "core/concat.h"

namespace halflife::cli {
namespace {

// `exported`: also include the layouts that export writes. The others are layouts of authors'
// checkpoints.
std::vector<std::string> LayoutNames(bool exported) {
  std::vector<std::string> names;
#define HL_LAYOUT(Make, model_type, exports) \
  if (exported || !exports) names.emplace_back(model_type);
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT
  return names;
}

}  // namespace

void AddImport(CLI::App& app, Request& request) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command =
      app.add_subcommand("import", "Create a run from a folder that transformers saved");
  DescribeUse(
      *command,
      {.notes = "The run has a step 0. eval, score, generate and export accept it, and train "
                "continues from it with the config.textproto in the run's folder.",
       .examples = {"halflife import --from models/tiny-llama --out runs/tiny-llama",
                    "halflife import --from models/d2d --layout d2d --out runs/d2d"},
       .exit_codes = {ExitCode::kData, ExitCode::kNonFinite, ExitCode::kCheckpointIo}});
  command
      ->add_option("--from", options->from,
                   "The folder with config.json, safetensors and tokenizer")
      ->type_name("DIR")
      ->required();
  command->add_option("--out", options->out, "The run to create; it must not exist")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--layout", options->layout,
                   Concat("Layout of the tensor names, for checkpoints of the authors of a paper: ",
                          Join(LayoutNames(false), ", "), " [config.json's model_type]"))
      ->type_name("NAME")
      // The help lists only the layouts of authors.
      ->check(OneOf(LayoutNames(true)).description(""));
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
