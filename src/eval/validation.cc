#include "eval/validation.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

#include "core/clock.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "data/token_source.h"
#include "dist/wait_longer.h"
#include "eval/attention_statistics.h"
#include "eval/batch_tensors.h"
#include "eval/part_sums.h"
#include "eval/scorer.h"

namespace halflife::eval {

std::vector<int64_t> ChooseWindows(int64_t num_windows, int64_t available) {
  // A seed that no run uses for its training order, which is a permutation of the same family.
  constexpr uint64_t kSeed = 0x76616c6964617465;
  const bool all = num_windows == 0 || num_windows >= available;
  std::vector<int64_t> windows(static_cast<size_t>(all ? available : num_windows));
  std::iota(windows.begin(), windows.end(), 0);
  if (all) return windows;
  for (int64_t& window : windows)
    window = static_cast<int64_t>(data::PermuteIndex(
        static_cast<uint64_t>(window), static_cast<uint64_t>(available), kSeed, /*epoch=*/0));
  std::ranges::sort(windows);
  return windows;
}

std::string DescribeChoice(int64_t num_scored, int64_t available) {
  if (num_scored == available) return Concat("scored all ", Counted(available, "window"));
  const double percent = 100 * static_cast<double>(num_scored) / static_cast<double>(available);
  return Concat("scored ", num_scored, " of ", Counted(available, "window"), ", ",
                Fixed(percent, percent < 1 ? 3 : 1), " % of the split");
}

namespace {

// Logs every 20 seconds how many rows are scored.
class ScoredRowsLog {
 public:
  explicit ScoredRowsLog(int64_t total) : total_(total) {}
  void Add(int64_t count) {
    scored_ += count;
    if (since_last_.Seconds() < 20) return;
    since_last_.Restart();
    const auto left = static_cast<double>(total_ - scored_), scored = static_cast<double>(scored_);
    HL_INFO("eval", "scored ", scored_, " of ", total_, " rows, ",
            HumanSeconds(watch_.Seconds() * left / scored), " left");
  }

 private:
  const int64_t total_;
  int64_t scored_ = 0;
  const Stopwatch watch_ = {};
  Stopwatch since_last_;
};

// The seed of an objective's random choices, which are the same in every validation.
constexpr uint64_t kValidationSeed = 0;

// The sums of one row, in fp64, so that they do not depend on the batch size.
struct SumsOfRow {
  double loss = 0, num_correct = 0, num_targets = 0;
};
constexpr int64_t kNumSumsOfRow = 3;

// The sums of all rows.
struct Sums {
  std::vector<SumsOfRow> rows;  // The rows of this rank.
  BinSums bins;
  RecallSums recall;
  ContextSums context;
  ClassTable classes;
};

// Scores one batch, the rows starting at `first`, and adds the results to their sums. If rows are
// split over ranks, this rank scores its slice of each row.
void ScoreRows(const model::LanguageModel& model, data::Batch batch, bool counts_correct,
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
  // Reading a loss could wait forever for another rank. Settle() waits with a deadline.
  if (config.parallel != nullptr) config.parallel->group->Settle();
  sums.bins.Add(first, scores.losses, tensors.targets.ge(0));
  sums.recall.Add(first, batch, scores.losses, tensors.targets.ge(0));
  sums.context.Add(first, batch, scores.losses, tensors.targets.ge(0));
  if (scores.class_log_probs.defined()) sums.classes.Add(first, batch, scores.class_log_probs);
  const at::Tensor losses = RowSums(scores.losses), num_targets = RowSums(tensors.targets.ge(0));
  const at::Tensor correct = counts_correct ? RowSums(scores.correct) : at::Tensor();
  for (int64_t row = 0; row < batch.batch_size; ++row)
    sums.rows.push_back({.loss = losses.const_data_ptr<double>()[row],
                         .num_correct = counts_correct ? correct.const_data_ptr<double>()[row] : 0,
                         .num_targets = num_targets.const_data_ptr<double>()[row]});
}

int64_t WindowLen(const ValidationConfig& config) {
  return config.window_len > 0 ? config.window_len : config.seq_len;
}
// Returns the distance in tokens between the starts of neighbouring rows.
int64_t RowStep(const ValidationConfig& config) {
  return config.stride > 0 ? config.stride : config.seq_len;
}

// Returns the ascending numbers of the rows whose last RowStep targets are in these windows. The
// first row of the split is an exception: no window precedes it, so it scores all its targets.
std::vector<int64_t> RowsOf(std::span<const int64_t> windows, const ValidationConfig& config) {
  const int64_t window_len = WindowLen(config), step = RowStep(config);
  HL_CHECK(window_len % config.seq_len == 0 && config.seq_len % step == 0,
           "validation needs windows of whole rows and rows of whole steps, but windows have ",
           window_len, " tokens, rows ", config.seq_len, " and the step ", step, " tokens");
  std::vector<int64_t> rows;
  for (const int64_t window : windows) {
    const int64_t begin = window * window_len, end = begin + window_len;
    const int64_t first = std::max<int64_t>(0, (begin + step - config.seq_len) / step);
    for (int64_t row = first; row * step + config.seq_len <= end; ++row) rows.push_back(row);
  }
  return rows;
}

// Reads rows by their numbers. In sliding rows, targets that the previous row scores are removed.
data::Batch ReadRows(const data::TokenView& tokens, const ValidationConfig& config,
                     std::span<const int64_t> rows) {
  if (config.stride == 0) return data::ReadWindows(tokens, config.seq_len, rows);
  data::Batch batch = data::ReadSlidingWindows(tokens, config.seq_len, config.stride, rows);
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] > 0)
      std::fill_n(batch.targets.begin() + static_cast<int64_t>(i) * config.seq_len,
                  config.seq_len - config.stride, data::kNoTarget);
  return batch;
}

// Rows of this rank, and of the rank with the most rows.
struct RowCounts {
  int64_t own = 0, most = 0;
};

// Repeats the forward pass of the first row of the split, until this rank has made as many passes
// as the others.
void RunMorePasses(const model::LanguageModel& model, const data::TokenView& tokens,
                   const ValidationConfig& config, std::span<const int64_t> rows,
                   const RowCounts& counts) {
  const auto passes = [&](int64_t of_rows) { return (of_rows + config.batch - 1) / config.batch; };
  const ValidationConfig plain = {.seq_len = config.seq_len,
                                  .stride = config.stride,
                                  .batch = config.batch,
                                  .parallel = config.parallel};
  for (int64_t pass = passes(counts.own); pass < passes(counts.most); ++pass) {
    Sums dropped = {.rows = {},
                    .bins = {1, config.seq_len, 0},
                    .recall = {1, false},
                    .context = {1, false},
                    .classes = {1, model.objective()}};
    ScoreRows(model, ReadRows(tokens, plain, rows.first(1)), /*counts_correct=*/false, plain, 0,
              dropped);
  }
}

SumsOfRow Total(std::span<const SumsOfRow> rows) {
  SumsOfRow total;
  for (const SumsOfRow& row : rows) {
    total.loss += row.loss;
    total.num_correct += row.num_correct;
    total.num_targets += row.num_targets;
  }
  return total;
}

// A named part of a split: the rows whose numbers are below `end` and that are not in an earlier
// part.
struct Part {
  std::string name;
  int64_t end = 0;
};
std::vector<Part> PartsOf(const std::vector<data::Segment>& segments) {
  std::vector<Part> parts;
  int64_t end = 0;
  for (const data::Segment& segment : segments)
    parts.push_back({segment.name, end += segment.num_rows});
  return parts;
}
// Assigns each row to the source that contains its first token.
std::vector<Part> PartsOf(const std::vector<data::Source>& sources, int64_t row_step) {
  std::vector<Part> parts;
  int64_t end = 0;  // In tokens.
  for (const data::Source& source : sources) {
    end += source.num_tokens;
    parts.push_back({source.name, (end + row_step - 1) / row_step});
  }
  return parts;
}

// Returns the scores of the parts that have scored rows, or nothing if there is only one part.
// `rows` are the ascending numbers of the rows in `sums`.
std::vector<PartScore> ScoresOfParts(const std::vector<Part>& parts, std::span<const int64_t> rows,
                                     std::span<const SumsOfRow> sums, bool has_accuracy) {
  std::vector<PartScore> scores;
  if (parts.size() < 2) return scores;
  for (const Part& part : parts) {
    const auto count = static_cast<size_t>(std::ranges::lower_bound(rows, part.end) - rows.begin());
    const SumsOfRow total = Total(sums.first(count));
    rows = rows.subspan(count), sums = sums.subspan(count);
    if (total.num_targets == 0) continue;
    scores.push_back({.name = part.name,
                      .loss = total.loss / total.num_targets,
                      .accuracy = has_accuracy
                                      ? std::optional(total.num_correct / total.num_targets)
                                      : std::nullopt,
                      .num_targets = static_cast<int64_t>(total.num_targets)});
  }
  return scores;
}

// Computes ValidationResult::loss_hf. Batches without targets have no mean and are skipped.
double MeanOfBatches(std::span<const SumsOfRow> rows, size_t batch) {
  double sum = 0, num_rows = 0;
  for (; !rows.empty(); rows = rows.subspan(std::min(batch, rows.size()))) {
    const auto of_batch = rows.first(std::min(batch, rows.size()));
    const SumsOfRow total = Total(of_batch);
    if (total.num_targets == 0) continue;
    sum += static_cast<double>(of_batch.size()) * total.loss / total.num_targets;
    num_rows += static_cast<double>(of_batch.size());
  }
  return sum / num_rows;
}

// Describes what a split contains and which objective fits it.
const std::map<data::RowLabels, std::string> kHeld = {
    {data::RowLabels::kNone,
     "text, which has no labels of its own. Use the objective next_token or masked_token, or "
     "labelled "
     "rows such as those of `halflife prepare --synthetic mqar` or `--labels classes`."},
    {data::RowLabels::kTask,
     "labelled rows, whose labels this objective does not use. "
     "Use model { objective { labelled {} } }."},
    {data::RowLabels::kAnswers,
     "prompts and answers, labelled by their next tokens. "
     "Use model { objective { next_token {} } }."},
    {data::RowLabels::kPreferences, "pairs of answers. Use model { objective { next_token {} } }."},
    {data::RowLabels::kClasses,
     "texts and their classes. Use model { objective { classification {} } }."}};

// Returns true if the model predicts the next token of text. Such results are reported in bits per
// byte, and all others as an accuracy.
bool PredictsText(const model::LanguageModel& model, const data::TokenView& tokens) {
  return tokens.row_len == 0 && model.objective().predicts_next_token();
}

// `rows` are the numbers of the rows in `sums`.
ValidationResult MakeResult(const data::TokenView& tokens, bool predicts_text,
                            const ValidationConfig& config, std::span<const int64_t> rows,
                            std::span<const SumsOfRow> sums) {
  const SumsOfRow total = Total(sums);
  HL_CHECK_AS(ExitCode::kData, total.num_targets > 0, "the validation windows hold no targets");
  ValidationResult result = {
      .loss = total.loss / total.num_targets,
      .loss_hf = MeanOfBatches(sums, static_cast<size_t>(config.batch)),
      .num_targets = static_cast<int64_t>(total.num_targets),
      .segments = ScoresOfParts(PartsOf(tokens.info.segments), rows, sums, !predicts_text),
      .sources =
          ScoresOfParts(PartsOf(tokens.info.sources, RowStep(config)), rows, sums, !predicts_text)};
  if (predicts_text) {
    result.bits_per_byte = data::BitsPerByte(result.loss, tokens.info, tokens.reset_at_documents);
  } else {
    result.accuracy = total.num_correct / total.num_targets;
  }
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
      case data::RowLabels::kPreferences:
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
              "objective classification: num_classes is ", classifier->num_classes, ", but ",
              tokens.name, " has ", num_classes, " classes: ", Join(tokens.classes, ", "),
              ". Use --set model.objective.classification.num_classes=", num_classes, ".");
}

int64_t RequireWindows(const data::TokenView& tokens, int64_t seq_len) {
  HL_CHECK_AS(ExitCode::kData, tokens.info.num_tokens > 0, tokens.name,
              " has no tokens: the dataset was prepared without it. Use another split, or prepare "
              "the dataset with --validation-tail 0.05 or --validation-input (a test split of "
              "labelled rows: --test-input).");
  const int64_t available = data::NumWindows(tokens, seq_len);
  HL_CHECK_AS(ExitCode::kData, available > 0, tokens.name, " has ", tokens.info.num_tokens,
              " tokens, fewer than one window of ", seq_len,
              " + 1. Use a shorter data.seq_len (`eval --seq-len`), or more text (`prepare` with a "
              "larger --validation-tail or --validation-fraction).");
  return available;
}

ValidationResult Validate(const model::LanguageModel& model, const data::TokenView& tokens,
                          const ValidationConfig& config, dist::Communicator& control) {
  const c10::AutoGradMode no_grad(false);
  RequireLabelsOf(model, tokens);
  HL_CHECK_AS(ExitCode::kUsage, tokens.labels != data::RowLabels::kPreferences, tokens.name,
              " holds pairs of answers, which only a run with train.preference compares. Read its "
              "metrics.jsonl, or use a dataset of --labels answers or messages.");
  RequireWindows(tokens, config.seq_len);
  const int64_t available = data::NumWindows(tokens, WindowLen(config));
  const std::vector<int64_t> windows = ChooseWindows(config.num_windows, available);
  const std::vector<int64_t> rows = RowsOf(windows, config);

  const int sp = config.parallel == nullptr ? 1 : config.parallel->group->size();
  const int groups = control.size() / sp, group = control.rank() / sp;
  const int64_t total = std::ssize(rows);
  const auto begin_of = [&](int64_t g) { return total * g / groups; };
  const int64_t begin = begin_of(group), end = begin_of(group + 1);
  const bool predicts_text = PredictsText(model, tokens);
  HL_CHECK(
      (config.bin == 0 && config.attention == nullptr && !config.recall && !config.half_context) ||
          sp == 1,
      "position bins, recall, context scores and attention statistics do not support rows that are "
      "split over ranks");
  HL_CHECK((config.stride == 0 && config.piece == 0) || (predicts_text && sp == 1),
           "the protocols sliding and carried require next-token prediction of text, and rows that "
           "are not split over ranks");
  HL_CHECK(!config.recall || predicts_text, "recall needs next-token prediction of text");
  Sums sums = {.rows = {},
               .bins = {total, config.seq_len, config.bin},
               .recall = {total, config.recall},
               .context = {total, config.half_context},
               .classes = {total, model.objective()}};
  const Stopwatch stopwatch;
  ScoredRowsLog log(end - begin);
  for (int64_t first = begin; first < end; first += config.batch) {
    const auto count = static_cast<size_t>(std::min(config.batch, end - first));
    const auto numbers = std::span(rows).subspan(static_cast<size_t>(first), count);
    ScoreRows(model, ReadRows(tokens, config, numbers), !predicts_text, config, first, sums);
    if (control.rank() == 0) log.Add(static_cast<int64_t>(count));
    if (config.on_batch) config.on_batch();
  }
  if (config.equal_passes)
    RunMorePasses(model, tokens, config, rows,
                  {.own = end - begin, .most = (total + groups - 1) / groups});
  // The sum over the ranks that hold slices of a row. Other ranks add 0.
  std::vector<SumsOfRow> all(rows.size());
  std::ranges::copy(sums.rows, all.begin() + begin);
  static_assert(sizeof(SumsOfRow) == kNumSumsOfRow * sizeof(double));
  dist::Work summed =
      control.AllReduce(Ref(reinterpret_cast<double*>(all.data()), kNumSumsOfRow * total),
                        dist::ReduceOp::kSum, {"validation_sums", 0}, nullptr);
  // A slower rank has as much time again.
  dist::WaitLonger(summed, stopwatch.Seconds());
  ValidationResult result = MakeResult(tokens, predicts_text, config, rows, all);
  result.num_windows = std::ssize(windows);
  result.num_available = available;
  result.positions = sums.bins.Scores(control);
  result.recall = sums.recall.Scores(control);
  result.half_context = sums.context.Score(control);
  result.classes = sums.classes.Scores(control);
  return result;
}

}  // namespace halflife::eval
