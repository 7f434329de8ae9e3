#include "train/record/event_log.h"

#include <fcntl.h>
#include <halflife/tensorboard_event.pb.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/fault.h"
#include "core/host.h"
#include "core/log.h"
#include "core/tfrecord.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;
namespace tb = proto::tensorboard;

constexpr std::string_view kPrefix = "events.out.tfevents.";

double UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::vector<fs::path> EventFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    // A pipe with such a name would block its reader.
    const bool named = entry.path().filename().string().starts_with(kPrefix);
    if (named && entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

// Removes the records of steps from `first_step` on, and an incomplete last record. A save is
// recorded when it ends, after later steps, so records to keep may follow records to drop. They are
// moved forward before the rest is cut off, so a kill in between leaves them complete, with an
// incomplete record behind them. A file without remaining records is deleted.
void CutBack(const fs::path& path, int64_t first_step) {
  TfRecordReader records(path, ExitCode::kEnvironment);
  uint64_t kept_end = 0;  // End of the records before the first dropped one.
  std::string moved;      // The kept records after it.
  bool drops = false, says_something = false;
  while (const auto payload = records.Next()) {
    tb::Event event;
    if (!event.ParseFromString(*payload)) break;
    if (!event.has_file_version() && event.step() >= first_step) {
      drops = true;
      continue;
    }
    if (drops) {
      moved += FrameTfRecord(*payload);
    } else {
      kept_end = records.offset();
    }
    says_something = says_something || event.has_summary();
  }
  if (!says_something) {
    fs::remove(path);
    return;
  }
  if (!moved.empty()) {
    const Fd file = OpenFile(path, O_WRONLY, ExitCode::kEnvironment);
    HL_CHECK_AS(ExitCode::kEnvironment,
                ::lseek(file.get(), static_cast<off_t>(kept_end), SEEK_SET) >= 0, path.string(),
                ": ", std::strerror(errno));
    WriteAll(file.get(), moved.data(), moved.size(), path, ExitCode::kEnvironment);
  }
  const uint64_t end = kept_end + moved.size();
  if (end < fs::file_size(path)) fs::resize_file(path, end);
}

// Returns a name that sorts after all earlier attempts, even if two start within a second or a
// clock runs late.
std::string NewName(const std::vector<fs::path>& earlier) {
  auto seconds = static_cast<long long>(UnixSeconds());
  for (const fs::path& path : earlier) {
    const std::string digits = path.filename().string().substr(kPrefix.size(), 10);
    seconds = std::max(seconds, std::atoll(digits.c_str()) + 1);
  }
  char number[32];
  std::snprintf(number, sizeof number, "%010lld", seconds);
  return Concat(kPrefix, number, ".", HostName(), ".", ::getpid());
}

}  // namespace

EventLog::EventLog(const fs::path& folder, int64_t first_step) : first_step_(first_step) {
  try {
    fs::create_directories(folder);
    const std::vector<fs::path> earlier = EventFiles(folder);
    path_ = folder / NewName(earlier);
    for (const fs::path& path : earlier) CutBack(path, first_step);
  } catch (const fs::filesystem_error& error) {
    HL_FAIL(ExitCode::kEnvironment, "cannot prepare ", folder.string(), ": ", TextOf(error));
  }
  fd_ = OpenFile(path_, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, ExitCode::kEnvironment);
  tb::Event version, start;
  version.set_file_version("brain.Event:2");
  Append(version, 0);
  start.mutable_session_log()->set_status(tb::SessionLog::START);
  Append(start, first_step);
}

void EventLog::Append(tb::Event& event, int64_t step) {
  event.set_wall_time(UnixSeconds());
  event.set_step(step);
  const std::string record = FrameTfRecord(event.SerializeAsString());
  if (!fd_) return;
  try {
    HL_FAULT_POINT("train.events", ExitCode::kEnvironment);
    WriteAll(fd_.get(), record.data(), record.size(), path_, ExitCode::kEnvironment);
    end_ += static_cast<int64_t>(record.size());
    if (failing_) HL_INFO("train", "TensorBoard events continue at step ", step);
    failing_ = false;
  } catch (const Error& error) {
    if (!failing_) {
      HL_WARN("train", "TensorBoard events of step ", step,
              " are lost, training goes on: ", error.message());
    }
    failing_ = true;
    // Readers stop at an incomplete record, so it is removed.
    if (::ftruncate(fd_.get(), end_) != 0) fd_ = Fd();
  }
}

void EventLog::Scalars(int64_t step, const std::vector<ScalarValue>& values) {
  tb::Event event;
  for (const ScalarValue& scalar : values) {
    tb::Summary::Value* value = event.mutable_summary()->add_value();
    value->set_tag(scalar.tag);
    value->set_simple_value(static_cast<float>(scalar.value));
  }
  Append(event, step);
}

void EventLog::Text(int64_t step, const std::string& tag, const std::string& markdown) {
  tb::Event event;
  tb::Summary::Value* value = event.mutable_summary()->add_value();
  value->set_tag(tag);
  value->mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  value->mutable_metadata()->set_data_class(tb::DATA_CLASS_TENSOR);
  value->mutable_tensor()->set_dtype(tb::DT_STRING);
  value->mutable_tensor()->mutable_tensor_shape();
  value->mutable_tensor()->add_string_val(markdown);
  Append(event, step);
}

std::string TagOf(const std::string& metric) {
  static const std::map<std::string, std::string> kTags = {
      {"loss", "train/loss"},
      {"z_loss", "train/z_loss"},
      {"lr", "train/lr"},
      {"grad_norm", "train/grad_norm"},
      {"clip_factor", "train/clip_factor"},
      {"skipped", "train/skipped"},
      {"valid_tokens", "train/valid_tokens"},
      {"pairs", "train/pairs"},
      {"reward_chosen", "train/reward_chosen"},
      {"reward_rejected", "train/reward_rejected"},
      {"reward_margin", "train/reward_margin"},
      {"reward_accuracy", "train/reward_accuracy"},
      {"tokens", "train/tokens"},
      {"drawn", "data/drawn"},
      {"epoch", "data/epoch"},
      {"val_loss", "val/loss"},
      {"val_perplexity", "val/perplexity"},
      {"val_bits_per_byte", "val/bits_per_byte"},
      {"val_accuracy", "val/accuracy"},
      {"val_reward_margin", "val/reward_margin"},
      {"val_pairs", "val/pairs"},
      {"val_mcc", "val/mcc"},
      {"val_f1_macro", "val/f1_macro"},
      {"val_auroc", "val/auroc"},
      {"val_tokens", "val/tokens"},
      {"val_windows_scored", "val/windows_scored"},
      {"val_windows_available", "val/windows_available"},
      {"tokens_per_s", "perf/tokens_per_second"},
      {"elapsed_s", "perf/elapsed_s"},
      {"step_ms", "perf/step_ms"},
      {"data_wait_ms", "perf/data_wait_ms"},
      {"exposed_comm_ms", "perf/exposed_comm_ms"},
      {"exposed_grad_ms", "perf/exposed_grad_ms"},
      {"exposed_param_ms", "perf/exposed_param_ms"},
      {"exposed_rows_ms", "perf/exposed_rows_ms"},
      {"replayed", "perf/replayed"},
      {"comm_bytes", "comm/bytes"},
      {"busy_ms_min", "perf/busy_ms_min"},
      {"busy_ms_median", "perf/busy_ms_median"},
      {"busy_ms_max", "perf/busy_ms_max"},
      {"slowest_rank", "perf/slowest_rank"},
      {"mfu_6p", "perf/mfu_6p"},
      {"mfu_full", "perf/mfu_full"},
      {"peak_flops", "perf/peak_flops"},
      {"peak_memory_bytes", "perf/peak_memory_bytes"},
      {"save_bytes", "ckpt/save_bytes"},
      {"save_ms", "ckpt/save_ms"},
      {"save_blocked_ms", "ckpt/save_blocked_ms"},
      {"save_mb_per_s", "ckpt/save_mb_per_s"},
  };
  // A metric of a segment, for example "val_accuracy/num_kv_pairs=4".
  if (const size_t slash = metric.find('/'); slash != std::string::npos)
    return TagOf(metric.substr(0, slash)) + metric.substr(slash);
  const auto found = kTags.find(metric);
  return found == kTags.end() ? "other/" + metric : found->second;
}

std::vector<ScalarValue> ScalarsOf(const nlohmann::ordered_json& line) {
  std::vector<ScalarValue> scalars;
  const bool trained = line.contains("loss");
  for (const auto& [metric, value] : line.items()) {
    if (metric == "step" || metric == "unix_ms") continue;
    if (!trained && (metric == "tokens" || metric == "elapsed_s")) continue;
    if (value.is_number()) scalars.push_back({TagOf(metric), value.get<double>()});
    if (value.is_boolean()) scalars.push_back({TagOf(metric), value.get<bool>() ? 1.0 : 0.0});
  }
  return scalars;
}

}  // namespace halflife::train
