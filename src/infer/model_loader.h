// Loads a trained model from its checkpoint (weights, config and tokenizer), without the trainer.
//
//   const LoadedModel loaded = LoadModel("runs/gla");  // a run (its newest step) or a step folder
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "ckpt/state.h"
#include "ckpt/weight_source.h"
#include "data/tokenizer.h"
#include "model/language_model.h"

namespace halflife::infer {

// The device of a model, and the compute dtype of its parameters (train.precision).
struct Placement {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;  // Or kBFloat16.
};

struct LoadedModel {
  std::unique_ptr<model::LanguageModel> model;  // Without gradients.
  // Null if neither the run nor the caller provides one.
  std::unique_ptr<data::Tokenizer> tokenizer;
  ckpt::StepState state;
  std::filesystem::path path;  // The folder of the step or of the model.
};

// Makes a model with the weights of `source`.
std::unique_ptr<model::LanguageModel> LoadWeights(const model::ModelConfig& config,
                                                  const ckpt::WeightSource& source,
                                                  const Placement& placement = {});
// Loads a model from a run (its newest step) or a step folder. `tokenizer` is an argument of
// data::OpenTokenizer. If it is empty, the run's own tokenizer/ is used; a step that was copied out
// of its run has none. `weights`: "main", or "ema" for the moving average of a run that keeps one.
LoadedModel LoadModel(const std::filesystem::path& run_or_step, const std::string& tokenizer = {},
                      const Placement& placement = {}, const std::string& weights = "main");
// Opens `tokenizer`, or, if it is empty, the tokenizer of the run that contains the step. Returns
// null if there is neither.
std::unique_ptr<data::Tokenizer> LoadTokenizerOfStep(const std::filesystem::path& step_dir,
                                                     const std::string& tokenizer);
// Returns the tokenizer. Throws kUsage if there is none (and names the option that provides one),
// or if it has more tokens than the model.
const data::Tokenizer& RequireTokenizer(const LoadedModel& loaded);

}  // namespace halflife::infer
