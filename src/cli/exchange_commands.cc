// The subcommands that exchange models with transformers: import and export.
#include <iostream>

#include "cli/command_line/options.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/human.h"
#include "infer/model_loader.h"
#include "interop/export.h"
#include "interop/hf_model.h"
#include "train/config/run_config.h"

namespace halflife::cli {
namespace {

// halflife import: converts a Hugging Face folder to a run, to evaluate it or to continue training.
// Returns a recipe that continues training from the weights: the model, its sequence length, and
// settings that every longer run needs for checkpoints and logs. Everything else is a default.
std::string Recipe(const interop::HfModel& model) {
  train::RunConfig config;
  config.model = model.config();
  config.data.seq_len = model.max_positions();
  config.ckpt.every = config.eval.every = config.schedule.warmup_steps = 100;
  config.eval.windows = 64;
  return train::ToText(config);
}

// Returns the names of the omitted tensors, up to a limit.
std::string UnusedTensors(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  if (names.empty()) return "";
  std::string text = Concat("left out: ", names.size(), names.size() == 1 ? " tensor" : " tensors",
                            " that the class declares and never uses: ");
  for (size_t i = 0; i < names.size() && i < kShown; ++i) text += (i > 0 ? ", " : "") + names[i];
  return text + (names.size() > kShown ? ", ...\n" : "\n");
}

// Suggests a command that uses the model.
std::string SuggestCommand(const interop::HfModel& model, const interop::ImportReport& report,
                           const std::string& run) {
  const auto objective = model::MakeObjective(model.config().objective, model.config().vocab_size);
  if (objective->takes_labels_of_data()) return Concat("eval --model ", run, " --data DATASET");
  const std::string on_text =
      Concat("--model ", run, report.has_tokenizer ? "" : " --tokenizer FILE");
  if (objective->predicts_next_token()) return Concat("generate ", on_text, " --prompt ...");
  return Concat("score ", on_text, " --text FILE --out SCORES.jsonl");
}

}  // namespace

ExitCode Run(const ImportOptions& options) {
  const interop::HfModel model = interop::HfModel::Open(options.from, options.layout);
  const interop::ImportReport report = interop::ImportModel(model, Recipe(model), options.out);
  std::cout << options.from << " (" << model.layout().class_name() << ") -> " << options.out << ": "
            << model::MixerSummary(model.config()) << ", "
            << HumanCount(static_cast<double>(report.num_parameters)) << " parameters"
            << (report.has_tokenizer ? "" : ", no tokenizer that halflife reads") << "\n"
            << UnusedTensors(model.unused()) << "next: halflife "
            << SuggestCommand(model, report, options.out) << "\n"
            << "      halflife train --config " << options.out
            << "/config.textproto --set data.path=DATASET --run " << options.out << "\n";
  return ExitCode::kFinished;
}

// halflife export: writes a checkpoint as a folder that transformers loads.
ExitCode Run(const ExportOptions& options) {
  interop::ExportOptions exported = options.exported;
  exported.dtype = options.dtype == "bf16" ? ckpt::StoredDType::kBF16 : ckpt::StoredDType::kF32;
  const std::filesystem::path step_dir = ckpt::FindStep(options.run);
  const ckpt::StepReader step = ckpt::StepReader::Open(step_dir);
  const auto tokenizer = infer::LoadTokenizerOfStep(step_dir, options.tokenizer);
  const interop::ExportReport report =
      interop::ExportModel(step, tokenizer.get(), options.out, exported);
  std::cout << step_dir.string() << " -> " << options.out << ": " << report.class_name << ", "
            << HumanBytes(report.bytes)
            << (exported.adapter       ? ", an adapter for peft"
                : report.has_tokenizer ? ""
                                       : ", no tokenizer (name one with --tokenizer)")
            << "\n";
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
