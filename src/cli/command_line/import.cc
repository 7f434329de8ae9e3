// halflife import: a Hugging Face folder as a run to evaluate or to train on from.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/value_checks.h"
#include "core/concat.h"

namespace halflife::cli {
namespace {

// `exported`: also those that models are written as. The others are of checkpoints of authors.
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
      app.add_subcommand("import", "Make a run from a folder that transformers saved");
  DescribeUse(*command,
              {.notes = "The run has a step 0: eval, score, generate and export take it, and train "
                        "goes on from it with the config.textproto beside it.",
               .examples = {"halflife import --from models/tiny-llama --out runs/tiny-llama",
                            "halflife import --from models/d2d --layout d2d --out runs/d2d"},
               .exit_codes = {ExitCode::kData, ExitCode::kNonFinite, ExitCode::kCheckpointIo}});
  command->add_option("--from", options->from, "The folder: config.json, safetensors, tokenizer")
      ->type_name("DIR")
      ->required();
  command->add_option("--out", options->out, "The run to make; it must not exist")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--layout", options->layout,
                   Concat("Whose names the tensors have, of checkpoints of a paper's authors: ",
                          Join(LayoutNames(false), ", "), " [config.json's model_type]"))
      ->type_name("NAME")
      ->check(OneOf(LayoutNames(true)).description(""));  // the help has those of authors
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
