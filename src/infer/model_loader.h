// A trained model from its checkpoint: weights, config and tokenizer, without the trainer.
//
//   const LoadedModel loaded = LoadModel("runs/gla");  // its newest step; or a step folder
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "ckpt/state.h"
#include "ckpt/weight_source.h"
#include "data/tokenizer.h"
#include "model/language_model.h"

namespace halflife::infer {

// Where a model computes, and in what: the dtype of the parameters that train.precision decides on.
struct Placement {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;  // or kBFloat16
};

struct LoadedModel {
  std::unique_ptr<model::LanguageModel> model;  // without gradients
  std::unique_ptr<data::Tokenizer> tokenizer;   // null where neither the run nor the caller had one
  ckpt::StepState state;
  std::filesystem::path path;  // of the step, or the folder
};

// Makes a model with the weights of `source`.
std::unique_ptr<model::LanguageModel> LoadWeights(const model::ModelConfig& config,
                                                  const ckpt::WeightSource& source,
                                                  const Placement& placement = {});
// `tokenizer` is what data::OpenTokenizer takes. Empty: the run's own tokenizer/. A step that was
// copied out of its run has none.
LoadedModel LoadModel(const std::filesystem::path& run_or_step, const std::string& tokenizer = {},
                      const Placement& placement = {});
// Opens `tokenizer`, or if that is empty the tokenizer of the run that contains the step. Null if
// there is neither.
std::unique_ptr<data::Tokenizer> LoadTokenizerOfStep(const std::filesystem::path& step_dir,
                                                     const std::string& tokenizer);
// Error kUsage where there is no tokenizer, with the flag that helps, or where it has more tokens
// than the model.
const data::Tokenizer& RequireTokenizer(const LoadedModel& loaded);

}  // namespace halflife::infer
