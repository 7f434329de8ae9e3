#include "infer/model_loader.h"

#include <ATen/ops/empty.h>

#include "ckpt/reader.h"
#include "core/error.h"
#include "core/log.h"

namespace halflife::infer {

LoadedModel LoadModel(const std::filesystem::path& run_or_step,
                      const std::filesystem::path& tokenizer_dir) {
  LoadedModel loaded;
  loaded.step_dir = ckpt::FindStep(run_or_step);
  const ckpt::StepReader reader = ckpt::StepReader::Open(loaded.step_dir);
  loaded.state = reader.state();
  loaded.model = std::make_unique<model::LanguageModel>(
      model::ModelConfigFromJson(loaded.state.model_config_json));
  model::ParameterSet& parameters = loaded.model->parameters();
  for (int i = 0; i < parameters.size(); ++i) {
    const dist::ParamSpec& spec = parameters.specs()[i];
    at::Tensor tensor = at::empty(spec.shape, at::kFloat);
    reader.ReadTensor(ckpt::Kind::kMain, spec.name, tensor.mutable_data_ptr<float>());
    parameters.Bind(i, std::move(tensor));
  }
  const std::filesystem::path run = ckpt::RunOfStep(loaded.step_dir);
  const std::filesystem::path folder = !tokenizer_dir.empty() ? tokenizer_dir
                                       : run.empty()          ? run
                                                              : run / "tokenizer";
  if (!folder.empty() && std::filesystem::exists(folder)) {
    loaded.tokenizer = data::LoadTokenizer(folder);
  }
  HL_INFO("infer", "loaded ", loaded.step_dir.string(), " (step ", loaded.state.step, ")");
  return loaded;
}

const data::Tokenizer& RequireTokenizer(const LoadedModel& loaded) {
  HL_CHECK_AS(ExitCode::kUsage, loaded.tokenizer != nullptr, "no tokenizer beside ",
              loaded.step_dir.string(),
              "; pass --tokenizer DIR (a dataset's or a run's tokenizer/)");
  return *loaded.tokenizer;
}

}  // namespace halflife::infer
