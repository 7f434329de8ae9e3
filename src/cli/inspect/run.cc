// A run's folder, its metrics and its checkpoints.
#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ckpt/reader.h"
#include "ckpt/step_dir.h"
#include "cli/inspect/artifact.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/json_text.h"
#include "model/language_model.h"

namespace halflife::cli::inspect {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

// Returns true if the line has the scores of the unnamed set. A validation may have only named
// sets.
bool ScoresASet(const Json& line) {
  for (const auto& [key, value] : line.items())
    if (key == "val_loss" || key.starts_with("val_loss/")) return true;
  return false;
}

// Adds lines in file order. After a resume:
// - A step that was trained again counts once, with its last values.
// - A step that was discarded and never trained again does not count.
class MetricsSummary {
 public:
  void Add(const std::string& line) {
    ++num_lines_;
    Json json;
    if (JsonNesting(line) <= kMaxJsonNesting)
      json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
      ++num_damaged_;
      return;
    }
    std::string attempt;  // Empty: the program did not write one.
    if (json.contains("attempt") && json["attempt"].is_string()) {
      attempt = json["attempt"];
      double& elapsed = attempts_[attempt];
      elapsed = std::max(elapsed, Number(json, "elapsed_s"));
    }
    num_saves_ += json.contains("save_bytes") ? 1 : 0;
    num_checkpoint_damage_ += json.contains("checkpoint_damage") ? 1 : 0;
    const bool validated = ScoresASet(json);
    if (!validated && !json.contains("loss")) return;
    const auto step = json["step"].get<int64_t>();
    if (attempt != attempt_) BeginAttempt(attempt, step);
    if (json.contains("loss")) {
      steps_[step] = StepOf(json);
      if (step == steps_.rbegin()->first) last_ = json;
    }
    if (validated) validations_[step] = std::move(json);
  }

  Json Finish() const {
    Json first, least, best;
    double seconds = 0, tokens = 0;
    int64_t num_skipped = 0, num_nonfinite = 0;
    double elapsed = 0;
    for (const auto& [attempt, seconds_of_attempt] : attempts_) elapsed += seconds_of_attempt;
    for (const auto& [number, step] : steps_) {
      if (first.is_null()) first = number;
      seconds += step.seconds;
      tokens += step.tokens_per_s * step.seconds;
      num_skipped += step.skipped ? 1 : 0;
      num_nonfinite += step.loss ? 0 : 1;
      if (step.loss && (least.is_null() || *step.loss < least["loss"])) {
        least = {{"step", number}, {"loss", *step.loss}};
      }
    }
    for (const auto& [step, line] : validations_) {
      const Json loss = line.value("val_loss", Json());
      if (loss.is_number() && (best.is_null() || loss < best["val_loss"])) best = line;
    }
    return {{"lines", num_lines_},
            {"damaged_lines", num_damaged_},
            {"attempts", attempts_.size()},
            {"steps", steps_.size()},
            {"first_step", first},
            {"last_step", last_},
            {"least_loss", least},
            {"skipped_steps", num_skipped},
            {"nonfinite_losses", num_nonfinite},
            {"tokens", last_.is_null() ? Json() : last_.value("tokens", Json())},
            {"seconds_in_steps", seconds},
            {"seconds_in_attempts", elapsed > 0 ? Json(elapsed) : Json()},
            {"mean_tokens_per_s", seconds > 0 ? Json(tokens / seconds) : Json()},
            {"validations", validations_.size()},
            {"last_validation", validations_.empty() ? Json() : validations_.rbegin()->second},
            {"best_validation", best},
            {"saves", num_saves_},
            {"passed_over_checkpoints", num_checkpoint_damage_}};
  }

 private:
  static double Number(const Json& line, const char* key) {
    return line.contains(key) && line[key].is_number() ? line[key].get<double>() : 0;
  }
  // The fields of a line that the summary needs. A run may have millions of lines.
  struct Step {
    std::optional<double> loss;  // Empty: not finite.
    double seconds = 0, tokens_per_s = 0;
    bool skipped = false;
  };
  static Step StepOf(const Json& line) {
    Step step = {.loss = {},
                 .seconds = 1e-3 * Number(line, "step_ms"),
                 .tokens_per_s = Number(line, "tokens_per_s"),
                 .skipped = line.value("skipped", Json()) == Json(true)};
    if (line["loss"].is_number()) step.loss = line["loss"].get<double>();
    return step;
  }
  // Removes the lines of earlier attempts from the first trained or validated step of a new attempt
  // on.
  void BeginAttempt(const std::string& attempt, int64_t from) {
    attempt_ = attempt;
    steps_.erase(steps_.lower_bound(from), steps_.end());
    validations_.erase(validations_.lower_bound(from), validations_.end());
    if (!last_.is_null() && last_["step"].get<int64_t>() >= from) last_ = Json();
  }

  int64_t num_lines_ = 0, num_damaged_ = 0, num_saves_ = 0, num_checkpoint_damage_ = 0;
  std::map<std::string, double> attempts_;  // Seconds of each attempt.
  std::map<int64_t, Step> steps_;
  std::map<int64_t, Json> validations_;
  std::string attempt_;
  Json last_;  // The line of the last step in steps_.
};

}  // namespace

bool IsMetrics(const fs::path& path) {
  std::error_code ignored;
  if (path.extension() != ".jsonl" || !fs::is_regular_file(path, ignored)) return false;
  if (path.filename() == "metrics.jsonl") return true;  // perhaps damaged
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  if (JsonNesting(line) > kMaxJsonNesting) return false;
  const Json first = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return first.is_object() && first.contains("step") &&
         (first.contains("attempt") || first.contains("loss") || first.contains("val_loss"));
}

Json DescribeMetrics(const fs::path& path) {
  std::ifstream in(path);
  HL_CHECK_AS(ExitCode::kData, in.good(), "cannot read ", path.string(),
              ". Check its permissions.");
  MetricsSummary summary;
  for (std::string line; std::getline(in, line);) summary.Add(line);
  // Without this check, a read error would look like the end of the file.
  HL_CHECK_AS(ExitCode::kData, !in.bad(), "cannot read ", path.string(), ". Check its disk.");
  return summary.Finish();
}

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

// Parses the model's config. Text that is not JSON is returned as a string.
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
