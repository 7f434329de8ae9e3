// A trained model from its checkpoint: weights, config and tokenizer, without the trainer.
//
//   const LoadedModel loaded = LoadModel("runs/gla");        // the newest step of a run, or a step
//   folder
#pragma once

#include <filesystem>
#include <memory>

#include "ckpt/state.h"
#include "ckpt/weight_source.h"
#include "data/tokenizer.h"
#include "model/language_model.h"

namespace halflife::infer {

struct LoadedModel {
  std::unique_ptr<model::LanguageModel> model;  // fp32, CPU, no gradients
  std::unique_ptr<data::Tokenizer> tokenizer;   // null where neither the run nor the caller had one
  ckpt::StepState state;
  std::filesystem::path path;  // of the step, or the folder
};

// A model's own weights from wherever they are.
std::unique_ptr<model::LanguageModel> LoadWeights(const model::ModelConfig& config,
                                                  const ckpt::WeightSource& source);
// `tokenizer_dir` empty: the run's own tokenizer/ (a step that was copied elsewhere has none).
LoadedModel LoadModel(const std::filesystem::path& run_or_step,
                      const std::filesystem::path& tokenizer_dir = {});
// `tokenizer_dir`, or where it is empty the tokenizer of the run that the step lies in; null: neither is there.
std::unique_ptr<data::Tokenizer> LoadTokenizerOfStep(const std::filesystem::path& step_dir,
                                                     const std::filesystem::path& tokenizer_dir);
// Error kUsage where there is none, with the flag that helps, or one of more tokens than the model has.
const data::Tokenizer& RequireTokenizer(const LoadedModel& loaded);

}  // namespace halflife::infer
