#include "train/record/metrics.h"

#include <unistd.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "train/record/event_log.h"

namespace halflife::train {

namespace fs = std::filesystem;

RunLines::RunLines(const fs::path& path) : path_(path), file_(path, ExitCode::kEnvironment) {}

void RunLines::Append(const nlohmann::ordered_json& line) {
  try {
    // The previous write may have failed as well.
    if (whole_) CutBack();
    std::error_code gone;
    if (const uintmax_t size = fs::file_size(path_, gone); !gone) whole_ = size;
    file_.Append(line);
    whole_.reset();
  } catch (const Error& error) {
    if (num_lost_++ == 0) {
      HL_WARN("train", "lines of ", path_.filename().string(),
              " are lost, training goes on: ", error.message());
    }
    try {
      if (whole_) CutBack();
    } catch (const Error&) {
      // The file remains as it is. The next line is only written after a complete line.
    }
    return;
  }
  if (num_lost_ > 0) {
    HL_WARN("train", path_.filename().string(), " takes lines again; ", Counted(num_lost_, "line"),
            num_lost_ == 1 ? " is" : " are", " missing");
  }
  num_lost_ = 0;
}

// Readers of a running run never see an incomplete line.
void RunLines::CutBack() const {
  std::error_code error;
  fs::resize_file(path_, *whole_, error);
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot cut ", path_.string(),
              " back to its last whole line: ", error.message());
}

namespace {

// Adds the metrics of a validation set, each with the suffix of the set.
void AddScores(const SetResult& set, nlohmann::ordered_json& line) {
  const eval::ValidationResult& result = set.result;
  const std::string suffix = set.suffix();
  line["val_loss" + suffix] = result.loss;
  if (set.reward_margin) line["val_reward_margin" + suffix] = *set.reward_margin;
  if (!set.reward_margin && !result.classes) line["val_perplexity" + suffix] = result.perplexity();
  if (result.bits_per_byte) line["val_bits_per_byte" + suffix] = *result.bits_per_byte;
  if (result.accuracy) line["val_accuracy" + suffix] = *result.accuracy;
  for (const eval::PartScore& segment : result.segments)
    line[Concat("val_accuracy", suffix, "/", segment.name)] = segment.accuracy.value();
  for (const eval::PartScore& source : result.sources)
    line[Concat("val_loss", suffix, "/", source.name)] = source.loss;
  if (result.classes) {
    line["val_mcc" + suffix] = result.classes->mcc;
    line["val_f1_macro" + suffix] = result.classes->f1_macro;
    if (result.classes->auroc) line["val_auroc" + suffix] = *result.classes->auroc;
  }
  line[(set.reward_margin ? "val_pairs" : "val_tokens") + suffix] = result.num_targets;
  line["val_windows_scored" + suffix] = result.num_windows;
  line["val_windows_available" + suffix] = result.num_available;
}

// Adds the rows of each source so far, also in epochs of the source. Removed sources are omitted.
void AddDrawn(const data::Blend& blend, uint64_t num_samples, nlohmann::ordered_json& line) {
  const std::vector<uint64_t> drawn = blend.Drawn(num_samples);
  for (size_t i = 0; i < drawn.size(); ++i) {
    const data::BlendSource& source = blend.sources()[i];
    if (source.num_windows == 0) continue;
    line["drawn/" + source.name] = drawn[i];
    line["epoch/" + source.name] =
        static_cast<double>(drawn[i]) / static_cast<double>(source.num_windows);
  }
}

std::string ScoresText(const SetResult& set) {
  const eval::ValidationResult& result = set.result;
  const std::string rest =
      set.reward_margin ? Concat("reward margin ", Fixed(*set.reward_margin, 4), ", accuracy ",
                                 Fixed(result.accuracy.value_or(0), 4))
      : result.accuracy
          ? Concat("accuracy ", Fixed(*result.accuracy, 4))
          : Concat("perplexity ", Fixed(result.perplexity(), 3), " per token, ",
                   Fixed(result.bits_per_byte.value_or(std::nan("")), 4), " bits per byte");
  return Concat(Fixed(result.loss, 4), ", ", rest);
}

}  // namespace

Metrics::Metrics(const MetricsConfig& config, std::unique_ptr<EventLog> events)
    : config_(config),
      file_(config.file),
      events_(std::move(events)),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

Metrics::~Metrics() {
  if (line_open_) std::cerr << "\n";
}

void Metrics::Write(nlohmann::ordered_json line) {
  const auto samples = config_.order.NumSamplesBefore(line.at("step").get<uint64_t>());
  line["tokens"] = static_cast<int64_t>(samples) * config_.seq_len;
  line["elapsed_s"] = clock_.Seconds();
  line["unix_ms"] = UnixMilliseconds();
  line["attempt"] = config_.attempt;
  file_.Append(line);
  if (events_) events_->Scalars(line.at("step").get<int64_t>(), ScalarsOf(line));
}

void Metrics::Step(int64_t step, const StepResult& result) {
  const int64_t tokens =
      config_.order.NumSamples(static_cast<uint64_t>(step - 1) + config_.skipped_steps) *
      config_.seq_len;
  const double tokens_per_s = static_cast<double>(tokens) / result.seconds;
  nlohmann::ordered_json line = {{"step", step},
                                 {"loss", result.loss},
                                 {result.rewards ? "pairs" : "valid_tokens", result.num_targets},
                                 {"lr", result.lr},
                                 {"grad_norm", result.grad_norm},
                                 {"clip_factor", result.clip_factor},
                                 {"skipped", result.skipped},
                                 {"tokens_per_s", tokens_per_s},
                                 {"step_ms", 1e3 * result.seconds},
                                 {"data_wait_ms", 1e3 * result.data_wait_seconds},
                                 {"exposed_comm_ms", 1e3 * result.exposed_comm_seconds()},
                                 {"exposed_grad_ms", 1e3 * result.exposed_grad_seconds},
                                 {"exposed_param_ms", 1e3 * result.exposed_param_seconds},
                                 {"exposed_rows_ms", 1e3 * result.exposed_rows_seconds}};
  if (!result.rewards) line["z_loss"] = result.z_loss;  // pairs have no z-loss
  if (result.rewards) {
    line["reward_chosen"] = result.rewards->chosen;
    line["reward_rejected"] = result.rewards->rejected;
    line["reward_margin"] = result.rewards->margin();
    line["reward_accuracy"] = result.rewards->accuracy;
  }
  if (result.num_replays) line["replayed"] = *result.num_replays;
  if (config_.world_size > 1)
    for (const auto& [group, bytes] : result.comm_bytes) line["comm_bytes/" + group] = bytes;
  if (config_.peak) {
    const double peak = config_.peak->flops_per_s * config_.world_size;
    line["mfu_6p"] = config_.flops_per_token_6p * tokens_per_s / peak;
    line["mfu_full"] = config_.flops_per_token_full * tokens_per_s / peak;
    line["peak_flops"] = peak;
  }
  line["peak_memory_bytes"] = PeakMemoryBytes(config_.device);
  if (config_.blend != nullptr)
    AddDrawn(*config_.blend,
             config_.order.NumSamplesBefore(static_cast<uint64_t>(step) + config_.skipped_steps),
             line);
  Write(std::move(line));
  mean_step_seconds_ =
      mean_step_seconds_ == 0 ? result.seconds : 0.9 * mean_step_seconds_ + 0.1 * result.seconds;
  Progress(step, result, tokens_per_s);
  if (++num_steps_ == kStepsBeforeForecast) Forecast(step);
}

void Metrics::Forecast(int64_t step) const {
  const int64_t left = config_.total_steps - step;
  if (left <= 0) return;
  const double seconds = mean_step_seconds_ * static_cast<double>(left);
  HL_INFO("train", "the ", left, " steps that are left take about ", HumanSeconds(seconds), ", ",
          Fixed(seconds / 3600 * config_.world_size, seconds < 3600 ? 2 : 0),
          " hours of all ranks together, not counting validations and saves");
}

void Metrics::Progress(int64_t step, const StepResult& result, double tokens_per_s) {
  if (!result.nonfinite.empty()) {
    HL_WARN("train", "step ", step, ": ", result.nonfinite,
            " is not finite; the update was skipped");
  } else if (result.spike) {
    HL_WARN("train", "step ", step, ": the loss ", Fixed(result.loss, 4),
            " is a spike (train.spike_sigmas); the update was skipped");
  } else if (result.num_targets == 0) {
    HL_WARN("train", "step ", step, ": no row has a target of the objective ", config_.objective,
            "; the update was skipped");
  }
  const bool due = step % config_.log_every == 0 || step == config_.total_steps || step == 1;
  if (!due && !terminal_) return;
  const std::string text =
      Concat("step ", step, "/", config_.total_steps, "  loss ", Fixed(result.loss, 4), "  grad ",
             Fixed(result.grad_norm, 2),
             result.rewards ? Concat("  margin ", Fixed(result.rewards->margin(), 3), "  accuracy ",
                                     Fixed(result.rewards->accuracy, 3))
                            : "",
             "  lr ", result.lr, "  ", HumanCount(tokens_per_s), " tokens/s  ETA ",
             HumanSeconds(mean_step_seconds_ * static_cast<double>(config_.total_steps - step)));
  if (terminal_) {
    std::cerr << "\r\033[K" << text << std::flush;
    line_open_ = true;
  } else {
    HL_INFO("train", text);
  }
}

void Metrics::Validation(int64_t step, const std::vector<SetResult>& sets) {
  nlohmann::ordered_json line = {{"step", step}};
  for (const SetResult& set : sets) AddScores(set, line);
  Write(std::move(line));
  if (terminal_ && line_open_) std::cerr << "\n";
  line_open_ = false;
  for (const SetResult& set : sets)
    HL_INFO("train", "step ", step, ": validation loss ",
            set.name.empty() ? "" : Concat("of ", set.name, " "), ScoresText(set));
}

void Metrics::Save(int64_t step, const ckpt::SaveReport& report, double blocked_s) {
  const auto bytes = static_cast<double>(report.bytes);
  Write({{"step", step},
         {"save_bytes", report.bytes},
         {"save_ms", 1e3 * report.seconds},
         {"save_blocked_ms", 1e3 * blocked_s},
         {"save_mb_per_s", bytes / 1e6 / report.durable_seconds}});
  if (terminal_ && line_open_) std::cerr << "\n";
  line_open_ = false;
  HL_INFO("ckpt", "wrote step ", step, " (", HumanBytes(bytes), " in ", Fixed(report.seconds, 2),
          " s, of which training waited ", Fixed(blocked_s, 2), " s)");
}

void Metrics::Ranks(int64_t step, const ComparedTimes& times) {
  Write({{"step", step},
         {"busy_ms_min", 1e3 * times.min_s},
         {"busy_ms_median", 1e3 * times.median_s},
         {"busy_ms_max", 1e3 * times.max_s},
         {"slowest_rank", times.slowest}});
  if (!times.worth_a_warning) return;
  HL_WARN("train", "rank ", times.slowest, " takes ",
          Fixed(100 * (times.max_s / times.median_s - 1), 0),
          " % longer to compute a step than the median rank, for ",
          times.times_in_a_row * RankTimes::kEvery, " steps now. The others waited ",
          Fixed(times.waited_s, 0), " s for it.");
}

void Metrics::Text(int64_t step, const std::string& tag, const std::string& markdown) {
  if (events_) events_->Text(step, tag, markdown);
}

void Metrics::Describe(const std::string& tag, const std::string& markdown) {
  if (events_) Text(events_->first_step(), tag, markdown);
}

void Metrics::Damage(int64_t step, const std::string& banner) {
  file_.Append({{"step", step}, {"checkpoint_damage", banner}, {"attempt", config_.attempt}});
  Describe("run/checkpoint_damage", banner);
}

}  // namespace halflife::train
