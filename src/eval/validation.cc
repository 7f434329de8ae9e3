#include "eval/validation.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "core/error.h"
#include "eval/attention_statistics.h"
#include "eval/batch_tensors.h"
#include "eval/carried.h"
#include "eval/class_table.h"

namespace halflife::eval {
namespace {

// Of an objective's random choices: those of validation are the same in every run.
constexpr uint64_t kValidationSeed = 0;

// Of one window, in fp64, so that the grouping into batches does not show.
struct WindowSums {
  double loss = 0, num_correct = 0, num_targets = 0;
};
constexpr int64_t kSumsOfWindow = 3;

// What is added up of windows.
struct Sums {
  std::vector<WindowSums> windows;  // of this rank
  BinSums bins;
  RecallSums recall;
  ClassTable classes;
};

// Scores one batch, of each row what this rank has of it, and adds to the sums those of its
// windows, which are the windows from `first` on.
void ScoreWindows(const model::LanguageModel& model, data::Batch batch, bool counts_correct,
                  const ValidationConfig& config, int64_t first, Sums& sums) {
  ApplyObjective(model.objective(), kValidationSeed, batch);
  const BatchTensors tensors = config.parallel == nullptr
                                   ? ToTensors(batch, model.device())
                                   : ToTensors(batch, model.device(), *config.parallel);
  model::ForwardContext context = {.slice = &tensors.slice, .num_targets = tensors.num_targets};
  if (config.attention != nullptr) context.observe = config.attention->Observer();
  model::TokenScores scores;
  if (config.piece > 0) {
    scores.losses = CarriedLosses(model, batch, config.piece);
  } else if (counts_correct) {
    scores = model.Scores(tensors.inputs, tensors.targets, context);
  } else {
    scores.losses = model.TokenLosses(tensors.inputs, tensors.targets, context);
  }
  // Reading a loss may wait for a peer for ever; this waits with the deadline.
  if (config.parallel != nullptr) config.parallel->group->Settle();
  sums.bins.Add(first, scores.losses, tensors.targets.ge(0));
  sums.recall.Add(first, batch, scores.losses, tensors.targets.ge(0));
  if (scores.class_log_probs.defined()) sums.classes.Add(first, batch, scores.class_log_probs);
  const at::Tensor losses = RowSums(scores.losses), num_targets = RowSums(tensors.targets.ge(0));
  const at::Tensor correct = counts_correct ? RowSums(scores.correct) : at::Tensor();
  for (int64_t row = 0; row < batch.batch_size; ++row)
    sums.windows.push_back(
        {.loss = losses.const_data_ptr<double>()[row],
         .num_correct = counts_correct ? correct.const_data_ptr<double>()[row] : 0,
         .num_targets = num_targets.const_data_ptr<double>()[row]});
}

// How many there are where they begin `stride` apart.
int64_t NumSlidingWindows(const data::TokenView& tokens, int64_t seq_len, int64_t stride) {
  const int64_t targets = tokens.info.num_tokens - 1;
  return targets < seq_len ? 0 : (targets - seq_len) / stride + 1;
}

// What an earlier window has scored is not asked for again.
data::Batch ReadBatch(const data::TokenView& tokens, const ValidationConfig& config, int64_t first,
                      int64_t count) {
  if (config.stride == 0) return data::ReadWindows(tokens, config.seq_len, first, count);
  data::Batch batch = data::ReadSlidingWindows(tokens, config.seq_len, config.stride, first, count);
  for (int64_t row = first == 0 ? 1 : 0; row < count; ++row)
    std::fill_n(batch.targets.begin() + row * config.seq_len, config.seq_len - config.stride,
                data::kNoTarget);
  return batch;
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

// What a split holds, and the objective that would work.
const std::map<data::RowLabels, std::string> kHeld = {
    {data::RowLabels::kNone,
     "text, which has no labels of its own; next_token or masked_token would work, or labelled "
     "rows, "
     "such as those of `halflife prepare --synthetic mqar` or `--labels classes`"},
    {data::RowLabels::kTask,
     "labelled rows, whose labels it would not use; model { objective { labelled {} } } would "
     "work"},
    {data::RowLabels::kAnswers,
     "prompts and answers, labelled by their next tokens; model { objective { next_token {} } } "
     "would work"},
    {data::RowLabels::kClasses,
     "texts and their classes; model { objective { classification {} } } would work"}};

// Text by its next tokens has bits per byte, whatever else is asked for an accuracy.
bool PredictsText(const model::LanguageModel& model, const data::TokenView& tokens) {
  return tokens.row_len == 0 && model.objective().predicts_next_token();
}

ValidationResult MakeResult(const data::TokenView& tokens, bool predicts_text,
                            std::span<const WindowSums> windows, int64_t batch) {
  const WindowSums total = Total(windows);
  HL_CHECK_AS(ExitCode::kData, total.num_targets > 0, "the validation windows hold no targets");
  ValidationResult result = {.loss = total.loss / total.num_targets,
                             .loss_hf = MeanOfBatches(windows, static_cast<size_t>(batch)),
                             .num_targets = static_cast<int64_t>(total.num_targets)};
  if (predicts_text) {
    result.bits_per_byte = data::BitsPerByte(result.loss, tokens.info, tokens.reset_at_documents);
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
  const model::Objective& objective = model.objective();
  const auto classifier = objective.classifier();
  const auto fits = [&](data::RowLabels labels) {
    switch (labels) {
      case data::RowLabels::kNone:
        return !objective.takes_labels_of_data();
      case data::RowLabels::kTask:
        return objective.takes_labels_of_data() && !classifier;
      case data::RowLabels::kAnswers:
        return objective.predicts_next_token();
      case data::RowLabels::kClasses:
        return classifier.has_value();
    }
    return false;
  };
  HL_CHECK_AS(ExitCode::kUsage, fits(tokens.labels), "objective ", model.config().objective.name(),
              ": ", tokens.name, " holds ", kHeld.at(tokens.labels));
  const auto num_classes = static_cast<int64_t>(tokens.classes.size());
  HL_CHECK_AS(ExitCode::kUsage, !classifier || classifier->num_classes == num_classes,
              "objective classification: num_classes is ", classifier->num_classes, ", and ",
              tokens.name, " has ", num_classes, ": ", Join(tokens.classes, ", "),
              "; --set model.objective.classification.num_classes=", num_classes, " would work");
}

int64_t RequireWindows(const data::TokenView& tokens, int64_t seq_len) {
  HL_CHECK_AS(ExitCode::kData, tokens.info.num_tokens > 0, tokens.name,
              " has no tokens: the dataset was prepared without it. Use another split, or prepare "
              "the dataset with --validation-tail 0.05 or --validation-input.");
  const int64_t available = data::NumWindows(tokens, seq_len);
  HL_CHECK_AS(ExitCode::kData, available > 0, tokens.name, " has ", tokens.info.num_tokens,
              " tokens, fewer than one window of ", seq_len,
              " + 1; use a shorter data.seq_len (`eval --seq-len`), or more text (`prepare` with a "
              "larger --validation-fraction)");
  return available;
}

ValidationResult Validate(const model::LanguageModel& model, const data::TokenView& tokens,
                          const ValidationConfig& config, dist::Communicator& control) {
  const c10::AutoGradMode no_grad(false);
  RequireLabelsOf(model, tokens);
  const int64_t whole = RequireWindows(tokens, config.seq_len);
  const int64_t available =
      config.stride > 0 ? NumSlidingWindows(tokens, config.seq_len, config.stride) : whole;
  const int64_t total =
      config.num_windows > 0 ? std::min(config.num_windows, available) : available;

  const int sp = config.parallel == nullptr ? 1 : config.parallel->group->size();
  const int groups = control.size() / sp, group = control.rank() / sp;
  const auto begin_of = [&](int64_t g) { return total * g / groups; };
  const int64_t begin = begin_of(group), end = begin_of(group + 1);
  const bool predicts_text = PredictsText(model, tokens);
  HL_CHECK((config.bin == 0 && config.attention == nullptr && !config.recall) || sp == 1,
           "bins of positions, recall, or statistics of attention, and rows on several ranks");
  HL_CHECK((config.stride == 0 && config.piece == 0) || (predicts_text && sp == 1),
           "windows that slide, or in pieces, of what is no text's next token or on several ranks");
  HL_CHECK(!config.recall || predicts_text, "recall of what is no text's next token");
  Sums sums = {.windows = {},
               .bins = {total, config.seq_len, config.bin},
               .recall = {total, config.recall},
               .classes = {total, model.objective()}};
  for (int64_t first = begin; first < end; first += config.batch) {
    const int64_t count = std::min(config.batch, end - first);
    ScoreWindows(model, ReadBatch(tokens, config, first, count), !predicts_text, config, first,
                 sums);
  }
  // Of every window, the sum over the ranks that have some of it; 0 adds nothing to the others.
  std::vector<WindowSums> all(static_cast<size_t>(total));
  std::ranges::copy(sums.windows, all.begin() + begin);
  static_assert(sizeof(WindowSums) == kSumsOfWindow * sizeof(double));
  control
      .AllReduce(Ref(reinterpret_cast<double*>(all.data()), kSumsOfWindow * total),
                 dist::ReduceOp::kSum, {"validation_sums", 0}, nullptr)
      .WaitHost();
  ValidationResult result = MakeResult(tokens, predicts_text, all, config.batch);
  result.positions = sums.bins.Scores(control);
  result.recall = sums.recall.Scores(control);
  result.classes = sums.classes.Scores(control);
  return result;
}

}  // namespace halflife::eval
