// Summarises TensorBoard's event files, as TensorBoard would show them. The files may come from
// other programs.
#include <halflife/tensorboard_event.pb.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/inspect/artifact.h"
#include "core/error.h"
#include "core/human.h"
#include "core/tfrecord.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
namespace tb = proto::tensorboard;
using Json = nlohmann::ordered_json;

// Upper bound of the points that files can make this program store. A run of 1,000,000 steps has
// about 13,000,000 points.
constexpr size_t kMaxPoints = 1 << 26;  // 1 GiB
constexpr size_t kMaxTags = 10'000;
constexpr size_t kMaxTagBytes = 1024;

struct Tag {
  bool is_text;
  std::string name;
  auto operator<=>(const Tag&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Point {
  int64_t step;
  uint32_t series;
  float value;  // 0 for text.
};

// The summary of a tag.
struct Series {
  int64_t num_points = 0, first_step = 0, last_step = 0;
  float last = 0;
  float least = std::numeric_limits<float>::infinity(), largest = -least;  // of finite values

  // Call this in reverse order: the point that was written last comes first.
  void AddEarlier(const Point& point) {
    if (num_points++ == 0) {
      first_step = last_step = point.step;
      last = point.value;
    }
    first_step = std::min(first_step, point.step);
    last_step = std::max(last_step, point.step);
    if (!std::isfinite(point.value)) return;
    least = std::min(least, point.value);
    largest = std::max(largest, point.value);
  }
};

// Prints 3e-4f as 0.0003, not as the double 0.00030000001424923539.
Json FiniteOrNull(float value) {
  return std::isfinite(value) ? Json(std::stod(ShortestText(value))) : Json();
}

class EventsSummary {
 public:
  void AddFile(const fs::path& path) {
    TfRecordReader records(path, ExitCode::kData);
    uint64_t num_records = 0, whole_bytes = 0;
    tb::Event event;
    for (; const auto payload = records.Next(); whole_bytes = records.offset(), ++num_records) {
      if (!event.ParseFromString(*payload)) break;
      HL_CHECK_AS(
          ExitCode::kData, num_records > 0 || event.file_version().starts_with("brain.Event:"),
          path.string(),
          " does not begin with the version of TensorBoard's events, brain.Event:2. Use a file "
          "that TensorBoard reads.");
      AddEvent(event, path);
    }
    const uint64_t bytes =
        std::max<uint64_t>(fs::file_size(path), whole_bytes);  // A trainer may truncate it.
    HL_CHECK_AS(ExitCode::kData, num_records > 0 || bytes == 0, path.string(), " of ", bytes,
                " bytes has no complete TensorBoard event. Use a file that TensorBoard reads.");
    files_.push_back({{"file", path.filename().string()},
                      {"bytes", bytes},
                      {"records", num_records},
                      {"damaged_bytes", bytes - whole_bytes}});
    num_records_ += num_records;
    damaged_bytes_ += bytes - whole_bytes;
  }

  Json Finish() const {
    const std::vector<Series> shown = Shown();
    Json scalars = Json::array(), texts = Json::array();
    for (const auto& [tag, index] : tags_) {
      const Series& series = shown[index];
      if (series.num_points == 0) continue;  // A later attempt replaced all points.
      Json row = {{"tag", tag.name},
                  {"points", series.num_points},
                  {"first_step", series.first_step},
                  {"last_step", series.last_step}};
      if (tag.is_text) {
        texts.push_back(std::move(row));
        continue;
      }
      row.update({{"least", FiniteOrNull(series.least)},
                  {"largest", FiniteOrNull(series.largest)},
                  {"last", FiniteOrNull(series.last)}});
      scalars.push_back(std::move(row));
    }
    return {{"records", num_records_},
            {"damaged_bytes", damaged_bytes_},
            {"attempts", num_attempts_},
            {"first_time", num_records_ > 0 ? Json(first_time_) : Json()},
            {"last_time", num_records_ > 0 ? Json(last_time_) : Json()},
            {"files", files_},
            {"scalars", std::move(scalars)},
            {"texts", std::move(texts)},
            {"other_values", num_other_}};
  }

 private:
  // An attempt starts at `step`: the first `num_points` points are not shown from `step` on.
  struct Start {
    size_t num_points;
    int64_t step;
  };

  void AddEvent(const tb::Event& event, const fs::path& path) {
    first_time_ = std::fmin(first_time_, event.wall_time());
    last_time_ = std::fmax(last_time_, event.wall_time());
    if (event.session_log().status() == tb::SessionLog::START) AddStart(event.step());
    for (const tb::Summary::Value& value : event.summary().value()) {
      const bool is_text = value.has_tensor() && value.tensor().dtype() == tb::DT_STRING;
      const bool is_scalar = value.value_case() == tb::Summary::Value::kSimpleValue;
      if (!is_text && !is_scalar) {
        ++num_other_;
        continue;
      }
      HL_CHECK_AS(ExitCode::kData, points_.size() < kMaxPoints, path.string(), ": more than ",
                  kMaxPoints, " points. Use files with fewer.");
      points_.push_back({event.step(), SeriesOf({is_text, value.tag()}, path),
                         is_scalar ? value.simple_value() : 0});
    }
  }

  void AddStart(int64_t step) {
    ++num_attempts_;
    if (!starts_.empty() && starts_.back().num_points == points_.size()) {
      starts_.back().step = std::min(starts_.back().step, step);
    } else {
      starts_.push_back({points_.size(), step});
    }
  }

  uint32_t SeriesOf(const Tag& tag, const fs::path& path) {
    const auto found = tags_.find(tag);
    if (found != tags_.end()) return found->second;
    HL_CHECK_AS(ExitCode::kData, tags_.size() < kMaxTags && tag.name.size() <= kMaxTagBytes,
                path.string(), ": more than ", kMaxTags, " tags, or one of more than ",
                kMaxTagBytes, " bytes (", tag.name.size(),
                "). Use files with fewer and shorter tags.");
    const auto index = static_cast<uint32_t>(tags_.size());
    tags_.emplace(tag, index);
    return index;
  }

  // Returns the summaries, by the indices in tags_. Points are visited from the last to the first,
  // so that all later starts are known.
  std::vector<Series> Shown() const {
    std::vector<Series> shown(tags_.size());
    auto start = starts_.rbegin();
    int64_t below = std::numeric_limits<int64_t>::max();
    for (size_t i = points_.size(); i-- > 0;) {
      for (; start != starts_.rend() && start->num_points > i; ++start) {
        below = std::min(below, start->step);
      }
      if (points_[i].step < below) shown[points_[i].series].AddEarlier(points_[i]);
    }
    return shown;
  }

  std::map<Tag, uint32_t> tags_;
  std::vector<Point> points_;
  std::vector<Start> starts_;
  Json files_ = Json::array();
  uint64_t num_records_ = 0, damaged_bytes_ = 0, num_attempts_ = 0, num_other_ = 0;
  double first_time_ = std::numeric_limits<double>::infinity(), last_time_ = -first_time_;
};

// Applies TensorBoard's own rule for file names.
bool IsEventFile(const fs::path& path) {
  std::error_code ignored;
  return path.filename().string().find("tfevents") != std::string::npos &&
         fs::is_regular_file(path, ignored);
}

// Returns the files in the order of their names, as TensorBoard reads them.
std::vector<fs::path> EventFiles(const fs::path& path) {
  if (IsEventFile(path)) return {path};
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
    if (IsEventFile(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

bool IsEvents(const fs::path& path) { return !EventFiles(path).empty(); }

Json DescribeEvents(const fs::path& path) {
  EventsSummary summary;
  for (const fs::path& file : EventFiles(path)) summary.AddFile(file);
  return summary.Finish();
}

}  // namespace halflife::cli::inspect
