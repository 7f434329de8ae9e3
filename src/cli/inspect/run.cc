#include <nlohmann/json.hpp>

#include <fstream>

#include "ckpt/reader.h"
#include "ckpt/step_dir.h"
#include "cli/inspect/artifact.h"
#include "core/error.h"
#include "core/hash.h"
#include "model/language_model.h"

namespace halflife::cli::inspect {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Recognises a step by its name, which also works if the step is damaged, or by the first bytes of
// its manifest, which also works if the folder was renamed.
bool IsCheckpoint(const fs::path& path) {
  std::error_code ignored;
  const fs::path manifest = path / ckpt::kManifestName;
  if (!fs::is_regular_file(manifest, ignored)) return false;
  if (ckpt::ParseStepName(path)) return true;
  std::string magic(6, '\0');
  std::ifstream(manifest, std::ios::binary).read(magic.data(), 6);
  return magic == "HLCKPT";
}

namespace {

// Returns null if a newer program wrote the model config and this one cannot read it.
Json Mixers(const std::string& model_config_json) {
  try {
    return model::MixerSummary(model::ModelConfigFromJson(model_config_json));
  } catch (const Error&) {
    return {};
  }
}

// Text that is not JSON is shown as a string.
Json ModelJson(const std::string& model_config_json) {
  Json json = Json::parse(model_config_json, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(model_config_json) : json;
}

}  // namespace

Json DescribeCheckpoint(const fs::path& path) {
  const ckpt::StepReader reader = ckpt::StepReader::Open(path);
  const ckpt::StepState& state = reader.state();
  return {{"step", state.step},
          {"final", state.final},
          {"family", state.model_family},
          {"mixers", Mixers(state.model_config_json)},
          {"tensors", reader.tensors().size()},
          {"files", reader.files().size()},
          {"bytes", reader.total_bytes()},
          {"world_size", state.mesh.world},
          {"samples", state.data.samples},
          {"tokens", state.data.tokens},
          {"dataset", ToHex(state.data.dataset)},
          {"metrics", state.metrics},
          {"model", ModelJson(state.model_config_json)}};
}

bool IsRun(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path / "ckpt", ignored) || fs::exists(path / "config.textproto", ignored);
}

Json DescribeRun(const fs::path& path) {
  std::error_code ignored;
  const fs::path metrics = path / "metrics.jsonl";
  Json described =
      fs::is_regular_file(metrics, ignored) ? DescribeMetrics(metrics) : Json::object();
  const std::vector<ckpt::StepDir> steps = ckpt::ListPublished(path / "ckpt");
  Json run = {{"finished", fs::exists(path / "DONE", ignored)},
              {"last_step", described.value("last_step", Json())},
              {"last_validation", described.value("last_validation", Json())},
              {"checkpoints", steps.size()}};
  if (!steps.empty()) {
    run["checkpoint"] = {{"path", steps.front().path.string()}};
    run["checkpoint"].update(DescribeCheckpoint(steps.front().path));
  }
  return run;
}

}  // namespace halflife::cli::inspect
