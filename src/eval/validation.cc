#include "eval/validation.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/error.h"
#include "eval/batch_tensors.h"

namespace halflife::eval {
namespace {

// Of an objective's random choices: those of validation are the same in every run.
constexpr uint64_t kValidationSeed = 0;

// Of one window, in fp64, so that the grouping into batches does not show.
struct WindowSums {
  double loss = 0, num_correct = 0, num_targets = 0;
};
constexpr int64_t kSumsOfWindow = 3;

// [B, T] -> the sums of its rows.
at::Tensor RowSums(const at::Tensor& values) {
  return values.to(at::kCPU).to(at::kDouble).sum(1).contiguous();
}

// Scores one batch and appends the sums of its windows.
void ScoreWindows(const model::LanguageModel& model, data::Batch batch, bool labelled,
                  at::Device device, std::vector<WindowSums>& sums) {
  ApplyObjective(model.objective(), kValidationSeed, batch);
  const BatchTensors tensors = ToTensors(batch, device);
  const model::ForwardContext context = {.slice = &tensors.slice, .num_targets = batch.num_targets};
  model::TokenScores scores;
  if (labelled) {
    scores = model.Scores(tensors.inputs, tensors.targets, context);
  } else {
    scores.losses = model.TokenLosses(tensors.inputs, tensors.targets, context);
  }
  const at::Tensor losses = RowSums(scores.losses);
  const at::Tensor correct = labelled ? RowSums(scores.correct) : at::Tensor();
  for (int64_t row = 0; row < batch.batch_size; ++row) {
    const auto labels =
        std::span(batch.targets)
            .subspan(static_cast<size_t>(row * batch.seq_len), static_cast<size_t>(batch.seq_len));
    sums.push_back({.loss = losses.const_data_ptr<double>()[row],
                    .num_correct = labelled ? correct.const_data_ptr<double>()[row] : 0,
                    .num_targets = static_cast<double>(
                        std::ranges::count_if(labels, [](int32_t label) { return label >= 0; }))});
  }
}

WindowSums Total(std::span<const WindowSums> windows) {
  WindowSums total;
  for (const WindowSums& window : windows) {
    total.loss += window.loss;
    total.num_correct += window.num_correct;
    total.num_targets += window.num_targets;
  }
  return total;
}

// Of those of the first windows that were scored; windows are rows.
std::vector<SegmentScore> ScoresOfSegments(const std::vector<data::Segment>& segments,
                                           std::span<const WindowSums> windows) {
  std::vector<SegmentScore> scores;
  for (const data::Segment& segment : segments) {
    const size_t count = std::min(windows.size(), static_cast<size_t>(segment.num_rows));
    const WindowSums total = Total(windows.first(count));
    windows = windows.subspan(count);
    if (total.num_targets == 0) continue;
    scores.push_back({.name = segment.name,
                      .loss = total.loss / total.num_targets,
                      .accuracy = total.num_correct / total.num_targets,
                      .num_targets = static_cast<int64_t>(total.num_targets)});
  }
  return scores;
}

// ValidationResult::loss_hf. Batches without targets have no mean, and are left out.
double MeanOfBatches(std::span<const WindowSums> windows, size_t batch) {
  double sum = 0, num_rows = 0;
  for (; !windows.empty(); windows = windows.subspan(std::min(batch, windows.size()))) {
    const auto rows = windows.first(std::min(batch, windows.size()));
    const WindowSums total = Total(rows);
    if (total.num_targets == 0) continue;
    sum += static_cast<double>(rows.size()) * total.loss / total.num_targets;
    num_rows += static_cast<double>(rows.size());
  }
  return sum / num_rows;
}

ValidationResult MakeResult(const data::TokenView& tokens, std::span<const WindowSums> windows,
                            int64_t batch) {
  const WindowSums total = Total(windows);
  HL_CHECK_AS(ExitCode::kData, total.num_targets > 0, "the validation windows hold no targets");
  ValidationResult result = {.loss = total.loss / total.num_targets,
                             .loss_hf = MeanOfBatches(windows, static_cast<size_t>(batch)),
                             .num_targets = static_cast<int64_t>(total.num_targets)};
  if (tokens.row_len == 0) {
    result.bits_per_byte = data::BitsPerByte(result.loss, tokens.info);
    return result;
  }
  result.accuracy = total.num_correct / total.num_targets;
  if (tokens.info.segments.size() > 1)
    result.segments = ScoresOfSegments(tokens.info.segments, windows);
  return result;
}

}  // namespace

double ValidationResult::perplexity() const { return std::exp(loss); }
double ValidationResult::perplexity_hf() const { return std::exp(loss_hf); }

void RequireLabelsOf(const model::LanguageModel& model, const data::TokenView& tokens) {
  const bool wanted = model.objective().takes_labels_of_data(), there = tokens.row_len > 0;
  const std::string& name = model.config().objective.name();
  HL_CHECK_AS(ExitCode::kUsage, there || !wanted, "objective ", name, ": ", tokens.name,
              " is text, which has no labels of its own; labelled rows, such as those of `halflife "
              "prepare --synthetic mqar`, or the objective next_token would work");
  HL_CHECK_AS(ExitCode::kUsage, wanted || !there, "objective ", name, ": ", tokens.name,
              " holds labelled rows, whose labels it would not use; model { objective { labelled "
              "{} } } would work");
}

ValidationResult Validate(const model::LanguageModel& model, const data::TokenView& tokens,
                          const ValidationConfig& config, at::Device device,
                          dist::Communicator& control) {
  const c10::AutoGradMode no_grad(false);
  RequireLabelsOf(model, tokens);
  const int64_t available = data::NumWindows(tokens, config.seq_len);
  HL_CHECK_AS(ExitCode::kData, available > 0, tokens.name, " has ", tokens.info.num_tokens,
              " tokens, fewer than one window of ", config.seq_len,
              " + 1; use a shorter data.seq_len (`eval --seq-len`), or more text (`prepare` with a "
              "larger --validation-fraction)");
  const int64_t total =
      config.num_windows > 0 ? std::min(config.num_windows, available) : available;

  const int world = control.size(), rank = control.rank();
  std::vector<int64_t> begins(world + 1);
  for (int r = 0; r <= world; ++r) begins[r] = total * r / world;
  std::vector<WindowSums> sums;
  for (int64_t first = begins[rank]; first < begins[rank + 1]; first += config.batch) {
    const int64_t count = std::min(config.batch, begins[rank + 1] - first);
    ScoreWindows(model, data::ReadWindows(tokens, config.seq_len, first, count), tokens.row_len > 0,
                 device, sums);
  }

  std::vector<WindowSums> all(static_cast<size_t>(total));
  std::vector<int64_t> counts(world);
  for (int r = 0; r < world; ++r) counts[r] = kSumsOfWindow * (begins[r + 1] - begins[r]);
  static_assert(sizeof(WindowSums) == kSumsOfWindow * sizeof(double));
  control
      .AllGatherV(Ref(reinterpret_cast<double*>(sums.data()),
                      kSumsOfWindow * static_cast<int64_t>(sums.size())),
                  Ref(reinterpret_cast<double*>(all.data()), kSumsOfWindow * total), counts,
                  {"validation_sums", 0}, nullptr)
      .WaitHost();
  return MakeResult(tokens, all, config.batch);
}

}  // namespace halflife::eval
