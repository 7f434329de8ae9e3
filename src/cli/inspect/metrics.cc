#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "core/error.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Lines as they come; a step that was done again after a resume counts once, as it was last.
class MetricsSummary {
 public:
  void Add(const std::string& line) {
    ++num_lines_;
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
      ++num_damaged_;
      return;
    }
    if (json.contains("attempt") && json["attempt"].is_string()) {
      double& elapsed = attempts_[json["attempt"].get<std::string>()];
      elapsed = std::max(elapsed, Number(json, "elapsed_s"));
    }
    num_saves_ += json.contains("save_bytes") ? 1 : 0;
    num_checkpoint_damage_ += json.contains("checkpoint_damage") ? 1 : 0;
    if (json.contains("val_loss")) AddValidation(json);
    if (json.contains("loss")) AddStep(std::move(json));
  }

  Json Finish() const {
    Json first, last, least;
    double seconds = 0, tokens = 0;
    int64_t num_skipped = 0, num_nonfinite = 0;
    double elapsed = 0;
    for (const auto& [attempt, seconds_of_attempt] : attempts_) elapsed += seconds_of_attempt;
    for (const auto& [step, line] : steps_) {
      if (first.is_null()) first = step;
      seconds += 1e-3 * Number(line, "step_ms");
      tokens += Number(line, "tokens_per_s") * 1e-3 * Number(line, "step_ms");
      num_skipped += line.value("skipped", Json()) == Json(true) ? 1 : 0;
      num_nonfinite += line["loss"].is_number() ? 0 : 1;
      if (line["loss"].is_number() && (least.is_null() || line["loss"] < least["loss"])) {
        least = {{"step", step}, {"loss", line["loss"]}};
      }
      last = line;
    }
    return {{"lines", num_lines_},
            {"damaged_lines", num_damaged_},
            {"attempts", attempts_.size()},
            {"steps", steps_.size()},
            {"first_step", first},
            {"last_step", last},
            {"least_loss", least},
            {"skipped_steps", num_skipped},
            {"nonfinite_losses", num_nonfinite},
            {"tokens", last.is_null() ? Json() : last.value("tokens", Json())},
            {"seconds_in_steps", seconds},
            {"seconds_in_attempts", elapsed > 0 ? Json(elapsed) : Json()},
            {"mean_tokens_per_s", seconds > 0 ? Json(tokens / seconds) : Json()},
            {"validations", validations_.size()},
            {"last_validation", validations_.empty() ? Json() : validations_.rbegin()->second},
            {"best_validation", best_validation_},
            {"saves", num_saves_},
            {"passed_over_checkpoints", num_checkpoint_damage_}};
  }

 private:
  static double Number(const Json& line, const char* key) {
    return line.contains(key) && line[key].is_number() ? line[key].get<double>() : 0;
  }
  void AddStep(Json line) {
    const auto step = line["step"].get<int64_t>();
    steps_[step] = std::move(line);
  }
  void AddValidation(const Json& line) {
    validations_[line["step"].get<int64_t>()] = line;
    const Json& loss = line["val_loss"];
    if (loss.is_number() && (best_validation_.is_null() || loss < best_validation_["val_loss"])) {
      best_validation_ = line;
    }
  }

  int64_t num_lines_ = 0, num_damaged_ = 0, num_saves_ = 0, num_checkpoint_damage_ = 0;
  std::map<std::string, double> attempts_;  // seconds of each
  std::map<int64_t, Json> steps_, validations_;
  Json best_validation_;
};

}  // namespace

bool IsMetrics(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".jsonl" && fs::is_regular_file(path, ignored);
}

Json DescribeMetrics(const fs::path& path) {
  std::ifstream in(path);
  HL_CHECK_AS(ExitCode::kData, in.good(), "cannot read ", path.string());
  MetricsSummary summary;
  for (std::string line; std::getline(in, line);) summary.Add(line);
  // Else a file that cannot be read would look like one that ends here.
  HL_CHECK_AS(ExitCode::kData, !in.bad(), "cannot read ", path.string());
  return summary.Finish();
}

}  // namespace halflife::cli::inspect
