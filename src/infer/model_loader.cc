#include "infer/model_loader.h"

#include <ATen/ops/empty.h>

#include "ckpt/damage.h"
#include "ckpt/merged_weights.h"
#include "ckpt/reader.h"
#include "core/error.h"
#include "core/log.h"
#include "data/tokenizer_folder.h"

namespace halflife::infer {

std::unique_ptr<data::Tokenizer> LoadTokenizerOfStep(const std::filesystem::path& step_dir,
                                                     const std::string& tokenizer) {
  if (!tokenizer.empty()) return data::OpenTokenizer(tokenizer);
  const std::filesystem::path run = ckpt::RunOfStep(step_dir);
  if (run.empty() || !std::filesystem::exists(run / "tokenizer")) return nullptr;
  return data::LoadTokenizer(run / "tokenizer");
}

std::unique_ptr<model::LanguageModel> LoadWeights(const model::ModelConfig& config,
                                                  const ckpt::WeightSource& source,
                                                  const Placement& placement) {
  auto model = std::make_unique<model::LanguageModel>(config);
  model::ParameterSet& parameters = model->parameters();
  for (int i = 0; i < parameters.size(); ++i) {
    const dist::ParamSpec& spec = parameters.specs()[i];
    at::Tensor tensor = at::empty(spec.shape, at::kFloat);
    source.ReadRange(spec.name, 0, spec.count(), tensor.mutable_data_ptr<float>());
    const bool computes = spec.region == dist::Region::kCompute;
    parameters.Bind(i,
                    tensor.to(placement.device, computes ? placement.compute_dtype : at::kFloat));
  }
  return model;
}

LoadedModel LoadModel(const std::filesystem::path& run_or_step, const std::string& tokenizer,
                      const Placement& placement, const std::string& weights) {
  LoadedModel loaded;
  loaded.path = ckpt::FindStep(run_or_step);
  ckpt::StepReader reader = ckpt::StepReader::Open(loaded.path);
  loaded.state = reader.state();
  try {
    loaded.model = LoadWeights(model::ModelConfigFromJson(loaded.state.model_config_json),
                               *ckpt::WeightsOfStep(std::move(reader), weights), placement);
  } catch (const ckpt::DamageError& error) {
    throw ckpt::DamageError(
        Concat(loaded.path.string(), " is damaged: ", error.message(),
               ". Use another step of the run by its folder; `halflife ckpt ls` "
               "lists them."));
  }
  loaded.tokenizer = LoadTokenizerOfStep(loaded.path, tokenizer);
  HL_INFO("infer", "loaded ", loaded.path.string(), " (step ", loaded.state.step,
          weights == "ema" ? ", average of the weights)" : ")");
  return loaded;
}

const data::Tokenizer& RequireTokenizer(const LoadedModel& loaded) {
  HL_CHECK_AS(
      ExitCode::kUsage, !loaded.model->objective().takes_labels_of_data(), loaded.path.string(),
      " has the objective ", loaded.model->config().objective.name(),
      ", whose labels come from a dataset, so it cannot score plain text. Use `halflife eval "
      "--data` to score labelled rows.");
  HL_CHECK_AS(ExitCode::kUsage, loaded.tokenizer != nullptr, loaded.path.string(),
              " has no tokenizer. Name one with --tokenizer: `bytes`, a file, or a folder such as "
              "a dataset's tokenizer/.");
  const int64_t vocab = loaded.model->config().vocab_size;
  HL_CHECK_AS(ExitCode::kUsage, loaded.tokenizer->vocab_size() <= vocab, "the tokenizer has ",
              loaded.tokenizer->vocab_size(), " tokens, but the model of ", loaded.path.string(),
              " has a vocabulary of ", vocab, ". Use the tokenizer that it was trained with.");
  return *loaded.tokenizer;
}

}  // namespace halflife::infer
