// TensorBoard event files: RUN/events/events.out.tfevents.*, one per attempt.
//
// An attempt repeats the steps after its checkpoint, so events of earlier attempts for these steps
// must not be shown. Opening a log therefore cuts the earlier files back to the steps before
// `first_step`. The new file begins with a SessionLog START, which makes a running TensorBoard
// discard events that it has already read. TensorBoard's data server depends only on the files,
// which it reads in the order of their names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/files.h"

namespace halflife::proto::tensorboard {
class Event;
}

namespace halflife::train {

struct ScalarValue {
  std::string tag;
  double value = 0;  // Stored as fp32.
};

// Not thread-safe. A folder has one writer, which the run's lock ensures.
class EventLog {
 public:
  // `first_step` is the first step that this attempt may write. Throws Error kEnvironment.
  EventLog(const std::filesystem::path& folder, int64_t first_step);

  // Each call writes one record with one write(2). A failure is logged once, leaves only complete
  // records, and never throws. Later calls try again.
  void Scalars(int64_t step, const std::vector<ScalarValue>& values);
  void Text(int64_t step, const std::string& tag, const std::string& markdown);

  const std::filesystem::path& path() const { return path_; }
  int64_t first_step() const { return first_step_; }

 private:
  void Append(proto::tensorboard::Event& event, int64_t step);

  std::filesystem::path path_;
  int64_t first_step_;
  Fd fd_;
  int64_t end_ = 0;  // End of the last complete record.
  bool failing_ = false;
};

// Returns the TensorBoard name of a metric of metrics.jsonl: "loss" -> "train/loss". The part
// before the slash is a group of charts. A metric without its own name goes to the group "other/".
std::string TagOf(const std::string& metric);

// Returns every number and boolean of a line, in the line's order, with two exceptions: (1) step
// and time, which an event contains itself; (2) tokens and elapsed_s of lines that do not describe
// a trained step. Validations and saves share its step, and a curve has one point per step.
std::vector<ScalarValue> ScalarsOf(const nlohmann::ordered_json& line);

}  // namespace halflife::train
