#include "report/run_record.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/files.h"

namespace halflife::report {
namespace {

namespace fs = std::filesystem;

std::string ReadIfThere(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) ? ReadFile(path, ExitCode::kEnvironment) : std::string();
}

// Returns true for the line of a validation without an unnamed set.
bool ScoresNamedSets(const nlohmann::json& line) {
  for (const auto& [key, value] : line.items())
    if (key.starts_with("val_loss/")) return true;
  return false;
}

// Reads the lines of metrics.jsonl in order and keeps the values that are still valid.
class MetricsReader {
 public:
  explicit MetricsReader(RunRecord& run) : run_(run) {}

  void Line(const std::string& text) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) {
      ++run_.damaged_lines;
      return;
    }
    const int64_t step = line["step"];
    BeginAttempt(line, step);
    for (const auto& [key, value] : line.items()) {
      if (key == "step" || key == "unix_ms") continue;
      if (key == "checkpoint_damage" && value.is_string()) {
        run_.checkpoint_damage.push_back(value);
      } else if (key == "elapsed_s" && value.is_number()) {
        run_.elapsed_s = std::max(run_.elapsed_s, earlier_s_ + value.get<double>());
        AddOnce(key, step, earlier_s_ + value.get<double>());
      } else if (key == "tokens" && value.is_number()) {
        AddOnce(key, step, value.get<double>());
      } else if (value.is_boolean()) {
        Add(key, step, value.get<bool>() ? 1 : 0);
      } else if (value.is_number() || value.is_null()) {
        Add(key, step,
            value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
      }
    }
  }

 private:
  // A new attempt replaces the values of earlier attempts from its first trained or validated step
  // on. (Lines about damage and saves that it writes before that belong to the step from which it
  // resumed.)
  void BeginAttempt(const nlohmann::json& line, int64_t step) {
    if (!line.contains("attempt") || !line["attempt"].is_string()) return;
    if (!line.contains("loss") && !line.contains("val_loss") && !ScoresNamedSets(line)) return;
    const std::string attempt = line["attempt"];
    if (attempt == attempt_) return;
    const bool first = attempt_.empty();
    attempt_ = attempt;
    earlier_s_ = run_.elapsed_s;
    if (first) return;
    std::erase_if(run_.resumes, [&](int64_t resume) { return resume >= step; });
    run_.resumes.push_back(step);
    const size_t before = run_.metric("loss").size();
    for (auto& [key, series] : run_.metrics) DropFrom(series, step);
    run_.replayed_steps += static_cast<int64_t>(before - run_.metric("loss").size());
  }
  static void DropFrom(Series& series, int64_t step) {
    while (!series.empty() && series.back().x >= static_cast<double>(step)) series.pop_back();
  }
  void Add(const std::string& key, int64_t step, double value) {
    Series& series = run_.metrics[key];
    DropFrom(series, step);
    series.push_back({static_cast<double>(step), value});
  }

  // Adds a value that every line contains (tokens and time so far). Only the first line of a step
  // counts: its validation line comes later, and its save line possibly after the lines of later
  // steps, and their times do not belong to the step's loss.
  void AddOnce(const std::string& key, int64_t step, double value) {
    const Series& series = run_.metric(key);
    if (series.empty() || series.back().x < static_cast<double>(step)) Add(key, step, value);
  }

  RunRecord& run_;
  std::string attempt_;
  double earlier_s_ = 0;  // Time of all earlier attempts.
};

void ReadMetrics(const fs::path& path, RunRecord& run) {
  const std::string text = ReadIfThere(path);
  MetricsReader reader(run);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    // An incomplete line: it is being written, or was cut off by a crash.
    if (end == std::string::npos) break;
    if (end > begin) reader.Line(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void ReadConfigText(RunRecord& run) {
  run.config_text = ReadIfThere(run.path / "config.textproto");
  if (run.config_text.empty()) run.config_problem = "there is no config.textproto";
}

void ReadStatus(RunRecord& run) {
  std::error_code ignored;
  run.finished = fs::exists(run.path / "DONE", ignored);
  run.failure = ReadIfThere(run.path / "abort" / "FIRST");
  const auto heartbeat = nlohmann::json::parse(ReadIfThere(run.path / "heartbeat.json"), nullptr,
                                               /*allow_exceptions=*/false);
  if (heartbeat.is_object() && heartbeat.contains("unix_ms") &&
      heartbeat["unix_ms"].is_number_integer()) {
    run.last_alive = UtcMinute(heartbeat["unix_ms"]);
  }
}

}  // namespace

std::string UtcMinute(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  return std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc) > 0 ? text : "";
}

const Series& RunRecord::metric(const std::string& key) const {
  static const Series kNone;
  const auto found = metrics.find(key);
  return found == metrics.end() ? kNone : found->second;
}

int64_t RunRecord::last_step() const {
  const Series& loss = metric("loss");
  return loss.empty() ? 0 : static_cast<int64_t>(loss.back().x);
}

int64_t RunRecord::num_tokens() const {
  const Series& tokens = metric("tokens");  // Files of older versions have none.
  return tokens.empty() ? last_step() * tokens_per_step : static_cast<int64_t>(tokens.back().y);
}

double RunRecord::tokens_at(double step) const {
  const Series& known = metric("tokens");
  const auto after = std::ranges::lower_bound(known, step, {}, &Point::x);
  if (after != known.end() && after->x == step) return after->y;
  const Point before = after == known.begin() ? Point{} : *std::prev(after);
  const double a_step = after == known.end() ? static_cast<double>(tokens_per_step)
                                             : (after->y - before.y) / (after->x - before.x);
  return before.y + (step - before.x) * a_step;
}

RunRecord ReadRun(const fs::path& path) {
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, fs::is_directory(path, error), path.string(),
              " is not a folder. Use the folder of a run, which `halflife train --run` wrote.");
  const auto holds = [&](const char* name) {
    std::error_code ignored;
    return fs::is_regular_file(path / name, ignored);
  };
  HL_CHECK_AS(
      ExitCode::kUsage, holds("config.textproto") || holds("metrics.jsonl"), path.string(),
      " is not the folder of a run: it has neither config.textproto nor metrics.jsonl. Use a "
      "folder that `halflife train --run` wrote.");
  RunRecord run;
  run.path = path;
  run.name = fs::weakly_canonical(path, error).filename().string();
  ReadMetrics(path / "metrics.jsonl", run);
  ReadConfigText(run);
  ReadStatus(run);
  return run;
}

}  // namespace halflife::report
