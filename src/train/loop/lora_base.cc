#include "train/loop/lora_base.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ckpt/merged_weights.h"
#include "ckpt/step_writer.h"
#include "core/clock.h"
#include "core/error.h"

namespace halflife::train {

namespace fs = std::filesystem;

void WriteLoraBase(const fs::path& run, const std::vector<dist::ParamSpec>& specs,
                   const StartValues& values, const ckpt::StepState& state) {
  const dist::ParameterLayout layout(specs, {.num_slices = 1});
  ckpt::StepState of_base;
  of_base.run_id = state.run_id;
  of_base.run_config_text = state.run_config_text;
  of_base.model_family = state.model_family;
  of_base.model_config_json = state.model_config_json;
  of_base.versions = state.versions;
  std::error_code ignored;
  fs::remove_all(run / ckpt::kLoraBaseFolder, ignored);  // of a start that failed
  ckpt::Manifest manifest{.state = std::move(of_base),
                          .attempt = {},
                          .unix_ms = UnixMilliseconds(),
                          .hosts = {},
                          .files = {},
                          .arrays = ckpt::ArrayEntries(layout, {ckpt::kMainArray}),
                          .tensors = ckpt::TensorEntries(layout)};
  int current = -1;  // the parameter in `tensor`
  at::Tensor tensor;
  ckpt::WriteStep(run / ckpt::kLoraBaseFolder, std::move(manifest), layout, [&](int rank) {
    ckpt::ShardPlan plan = ckpt::PlanShard(layout, {ckpt::kMainArray}, rank);
    plan.fill = [&](const ckpt::ShardPiece& piece, int64_t begin, int64_t end, float* out) {
      const auto spec = std::ranges::find(specs, piece.tensor, &dist::ParamSpec::name);
      const int param = static_cast<int>(spec - specs.begin());
      if (param != current) tensor = values.Of(param).contiguous();
      current = param;
      const float* const data = tensor.const_data_ptr<float>();
      std::copy(data + begin, data + end, out);
    };
    return plan;
  });
}

void CopyLoraBase(const fs::path& step, const fs::path& run, const std::string& run_id) {
  const fs::path run_of_step = ckpt::RunOfStep(step), from = run_of_step / ckpt::kLoraBaseFolder,
                 to = run / ckpt::kLoraBaseFolder;
  std::error_code error;
  if (fs::exists(to / "manifest.pb", error)) {
    const std::string present = ckpt::StepReader::Open(to).state().run_id;
    if (present == run_id) return;
    fs::rename(to, fs::path(to) += "." + present, error);  // the base of steps that were set aside
    HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot rename ", to.string(), ": ",
                error.message(), ". Rename it yourself, and start the command again.");
  }
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, !run_of_step.empty(), step.string(),
              " has only the LoRA weights of a run. The base weights are in the run's folder ",
              ckpt::kLoraBaseFolder, "/, and this step is not in a run. Use the step within the ",
              "run's folder.");
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, fs::exists(from / "manifest.pb", error), step.string(),
              " has only the LoRA weights of a run, and ", from.string(),
              " with its base weights is missing. Restore that folder.");
  const fs::path part = fs::path(to) += ".tmp";  // a copy that was interrupted is no base
  fs::remove_all(part, error);
  fs::copy(from, part, fs::copy_options::recursive, error);
  if (!error) fs::rename(part, to, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot copy ", from.string(), " to ", to.string(),
              ": ", error.message(), ". Copy the folder yourself, and start the command again.");
}

}  // namespace halflife::train
