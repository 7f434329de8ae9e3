// The subcommands that exchange models with transformers: import and export.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/shared_options.h"
#include "cli/command_line/value_checks.h"
#include "core/concat.h"

namespace halflife::cli {
namespace {

// halflife import: converts a Hugging Face folder to a run, to evaluate it or to continue training.
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

namespace {

// halflife export: writes a checkpoint as a folder that transformers loads.
std::vector<std::string> ModelTypes() {
  std::vector<std::string> names = {"auto"};
#define HL_LAYOUT(Make, model_type, exports) \
  if (exports) names.emplace_back(model_type);
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT
  return names;
}

}  // namespace

void AddExport(CLI::App& app, Request& request) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      app.add_subcommand("export", "Write a checkpoint as a folder that transformers loads");
  DescribeUse(
      *command,
      {.notes =
           "Load it in Python with AutoModelForCausalLM.from_pretrained(\"exports/first\"), after "
           "`import fla` for the classes of flash-linear-attention.",
       .examples = {"halflife export --run runs/first --out exports/first --dtype bf16"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNonFinite,
                      ExitCode::kNoUsableCheckpoint}});
  command
      ->add_option("--run", options->run,
                   "A run (its newest step), RUN@best or RUN@1200, or a step's folder")
      ->type_name("RUN")
      ->required();
  command->add_option("--out", options->out, "The folder to create; it must not exist")
      ->type_name("DIR")
      ->required();
  command->add_option("--dtype", options->dtype, "Type of all tensors")
      ->check(OneOf({"fp32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--model-type", options->exported.model_type,
                   Concat("model_type of config.json, if several classes fit the model: ",
                          Join(ModelTypes(), ", ")))
      ->type_name("NAME")
      ->check(OneOf(ModelTypes()).description(""))
      ->capture_default_str();
  command
      ->add_option("--max-shard", options->exported.max_shard_bytes,
                   "Maximum size of one file, for example 5GB")
      ->type_name("SIZE")
      ->transform(SizeInBytes())
      ->default_str("5GB");
  command->add_flag("--untie", options->exported.untie,
                    "Write the head of a tied model as a separate tensor");
  AddTokenizer(*command, options->tokenizer, "the run's");
  command->callback([=, &request] { request = *options; });
}

}  // namespace halflife::cli
