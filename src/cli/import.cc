// halflife import: a Hugging Face folder as a run to evaluate or to train on from.
#include <CLI/CLI.hpp>

#include <iostream>

#include "cli/command.h"
#include "core/human.h"
#include "interop/import.h"
#include "train/run_config.h"

namespace halflife::cli {
namespace {

struct Options {
  std::string from, out;
};

// A recipe that trains on from the weights: the model and its sequence length, and what a run of any
// length needs to survive a crash and to be watched; all else by default.
std::string Recipe(const interop::HfModel& model) {
  train::RunConfig config;
  config.model = model.config();
  config.data.seq_len = model.max_positions();
  config.ckpt.every = config.eval.every = config.schedule.warmup_steps = 100;
  config.eval.windows = 64;
  return train::ToText(config);
}

ExitCode Run(const Options& options) {
  const interop::HfModel model = interop::HfModel::Open(options.from);
  const interop::ImportReport report = interop::ImportModel(model, Recipe(model), options.out);
  std::cout << options.from << " (" << model.layout().class_name() << ") -> " << options.out << ": "
            << model::MixerSummary(model.config()) << ", "
            << HumanCount(static_cast<double>(report.num_parameters)) << " parameters"
            << (report.has_tokenizer ? "" : ", no tokenizer that halflife reads") << "\n"
            << "next: halflife generate --model " << options.out << " --prompt ...\n"
            << "      halflife train --config " << options.out
            << "/config.textproto --set data.path=DATASET --run " << options.out << "\n";
  return ExitCode::kFinished;
}

}  // namespace

void AddImport(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("import", "Make a run from a folder that transformers saved");
  DescribeUse(*command,
              {.notes = "The run has a step 0: eval, score, generate and export take it, and train "
                        "goes on from it with the config.textproto beside it.",
               .examples = {"halflife import --from models/tiny-llama --out runs/tiny-llama"},
               .exit_codes = {ExitCode::kData, ExitCode::kNonFinite, ExitCode::kCheckpointIo}});
  command->add_option("--from", options->from, "The folder: config.json, safetensors, tokenizer")
      ->type_name("DIR")
      ->required();
  command->add_option("--out", options->out, "The run to make; it must not exist")
      ->type_name("DIR")
      ->required();
  command->callback([=, &action] { action = [options] { return Run(*options); }; });
}

}  // namespace halflife::cli
