// halflife export: writes a checkpoint as a folder that transformers loads.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/text_options.h"
#include "cli/command_line/value_checks.h"

namespace halflife::cli {
namespace {

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
                   "model_type of config.json, if several classes fit the model")
      ->check(OneOf(ModelTypes()))
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
