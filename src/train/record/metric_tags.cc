#include "train/record/metric_tags.h"

#include <map>
#include <nlohmann/json.hpp>

namespace halflife::train {

std::string TagOf(const std::string& metric) {
  static const std::map<std::string, std::string> kTags = {
      {"loss", "train/loss"},
      {"z_loss", "train/z_loss"},
      {"lr", "train/lr"},
      {"grad_norm", "train/grad_norm"},
      {"clip_factor", "train/clip_factor"},
      {"skipped", "train/skipped"},
      {"valid_tokens", "train/valid_tokens"},
      {"tokens", "train/tokens"},
      {"val_loss", "val/loss"},
      {"val_perplexity", "val/perplexity"},
      {"val_bits_per_byte", "val/bits_per_byte"},
      {"val_accuracy", "val/accuracy"},
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
