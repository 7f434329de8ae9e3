// TensorBoard's event files: RUN/events/events.out.tfevents.*, one for each attempt.
//
//   EventLog events(run / "events", /*first_step=*/0);
//   events.Scalars(12, {{"train/loss", 2.5}, {"train/lr", 3e-4}});
//   events.Text(0, "run/config", "    optimizer { lr: 3e-4 }");   // Markdown
//
// An attempt replays the steps after its checkpoint, so what earlier ones say of them must not be
// shown beside it. Opening a log therefore cuts the earlier files back to the steps before
// `first_step`, and the new file begins with a SessionLog START, by which a TensorBoard that has
// read them already forgets. TensorBoard's data server heeds the files alone, and only reads them
// in the order of their names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/files.h"

namespace halflife::proto::tensorboard {
class Event;
}

namespace halflife::train {

struct ScalarValue {
  std::string tag;
  double value = 0;  // stored as fp32
};

// Not thread-safe. A folder has one writer, which the run's lock sees to.
class EventLog {
 public:
  // `first_step` is the first that this attempt may write. Error kEnvironment.
  EventLog(const std::filesystem::path& folder, int64_t first_step);

  // Each call is one record and one write(2). A failure is logged once, leaves whole records behind
  // and never throws; later calls try again.
  void Scalars(int64_t step, const std::vector<ScalarValue>& values);
  void Text(int64_t step, const std::string& tag, const std::string& markdown);

  const std::filesystem::path& path() const { return path_; }
  int64_t first_step() const { return first_step_; }

 private:
  void Append(proto::tensorboard::Event& event, int64_t step);

  std::filesystem::path path_;
  int64_t first_step_;
  Fd fd_;
  int64_t end_ = 0;  // of the last whole record
  bool failing_ = false;
};

}  // namespace halflife::train
