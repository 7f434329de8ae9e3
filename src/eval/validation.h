// The mean loss over windows of a split or of another text, and the accuracy on labelled rows and
// hidden tokens.
//
// A window is window_len consecutive tokens. Windows are the unit that is chosen; a window is
// scored completely. A row is the seq_len tokens that the model reads at once, starting from an
// empty state. A window is one row, unless a table by length splits it into several. Rows are
// distributed over ranks and summed in fp64 in row order, so that the result does not depend on the
// world size, except for the model's own rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/token_source.h"
#include "dist/communicator.h"
#include "eval/class_scores.h"
#include "eval/part_sums.h"
#include "model/language_model.h"
#include "model/sequence_parallel.h"

namespace halflife::eval {

// Chooses the windows of a split to score if not all are scored. The sample is spread over the
// whole split, so that a validation of few windows covers every source of mixed text.
//
//   const std::vector<int64_t> windows = ChooseWindows(/*num_windows=*/16, /*available=*/1024);
//   DescribeChoice(16, 1024);  // "scored 16 of 1024 windows, 1.6 % of the split"
//
// Returns the numbers of the windows to score, in ascending order: the first num_windows of a fixed
// permutation of [0, available). The choice depends only on these two numbers, so that every
// validation, run and world size scores the same windows. Chooses all windows if num_windows is 0
// or at least `available`.
std::vector<int64_t> ChooseWindows(int64_t num_windows, int64_t available);

std::string DescribeChoice(int64_t num_scored, int64_t available);

class AttentionStatistics;

struct ValidationConfig {
  int64_t seq_len = 512;    // Tokens of a row.
  int64_t num_windows = 0;  // See ChooseWindows. 0: all windows.
  int64_t window_len = 0;   // Tokens of a window, a multiple of seq_len. 0: seq_len.
  // If above 0, rows start this many tokens apart (next-token objectives only). A row scores only
  // its last `stride` targets, so that each has at least seq_len - stride tokens of context,
  // possibly from the previous window. The split's first row scores all of its targets. 0: rows are
  // adjacent.
  int64_t stride = 0;
  int64_t piece = 0;                         // Tokens of a piece of CarriedLosses. 0: whole rows.
  int64_t batch = 8;                         // Rows per forward pass.
  int64_t bin = 0;                           // Tokens of a position bin. 0: no bins.
  bool recall = false;                       // Reports scores by RecallFlags.
  bool half_context = false;                 // Reports the score of ContextSums.
  AttentionStatistics* attention = nullptr;  // Collects statistics of this rank's rows. Borrowed.
  // Set if this rank holds a slice of each row (borrowed). Null: it holds whole rows.
  const model::SequenceParallel* parallel = nullptr;
  // If true, all ranks make the same number of forward passes, because they exchange weights in
  // each. A rank that runs out of rows repeats its first one and drops the result.
  bool equal_passes = false;
  std::function<void()> on_batch = nullptr;  // Called after each forward pass of this rank's rows.
};
// The score of the rows of one part of a split: a segment of labelled rows, or a source of text. A
// row that spans two sources counts for the source of its first token.
struct PartScore {
  std::string name;
  double loss = 0;
  std::optional<double> accuracy;  // See ValidationResult.
  int64_t num_targets = 0;
};
struct ValidationResult {
  double loss = 0;  // Mean -ln p per target.
  // The eval_loss of the Trainer of transformers: the mean over batches of each batch's mean loss
  // per target, weighted by the number of rows. Equal to `loss` if all rows have the same number of
  // targets; otherwise it depends on `batch`.
  double loss_hf = 0;
  int64_t num_targets = 0;
  int64_t num_windows = 0, num_available = 0;  // Scored windows; windows of the split.
  // data::BitsPerByte of the loss. Only for next-token prediction of text.
  std::optional<double> bits_per_byte;
  // In all other cases: the share of labels or hidden tokens that are predicted as the most likely
  // token.
  std::optional<double> accuracy;
  // Parts that have scored rows. Empty if the split has fewer than two parts.
  std::vector<PartScore> segments, sources;
  std::vector<PositionScore> positions;         // Bins that have targets.
  std::optional<ClassScores> classes;           // Scores of documents, for classifiers.
  std::vector<RecallScore> recall;              // All four groups, if requested.
  std::optional<PartSums::Score> half_context;  // If requested.
  double perplexity() const;
  double perplexity_hf() const;
};
// Throws kUsage if the objective needs other labels than those of the dataset, or another number of
// classes.
void RequireLabelsOf(const model::LanguageModel& model, const data::TokenView& tokens);

// Returns the number of windows, at least 1. Throws kData if there are too few tokens for one
// window.
int64_t RequireWindows(const data::TokenView& tokens, int64_t seq_len);

// Scores the windows that `config` selects. Collective over `control`. Throws the errors of
// RequireWindows and RequireLabelsOf.
ValidationResult Validate(const model::LanguageModel& model, const data::TokenView& tokens,
                          const ValidationConfig& config, dist::Communicator& control);

// A baseline that a language model should beat: an add-one-smoothed bigram model of the training
// split,
//   p(b | a) = (count(a b) + 1) / (count(a) + vocab),
// scored on the same targets as the model. With resets at documents, the first token of a document
// is not a target. On the training split itself, the bigram model scores the text that it has
// counted, so there the result is a bound and not a fair baseline.
struct BigramResult {
  double loss = 0;  // Mean -ln p per target.
  int64_t num_targets = 0;
  double bits_per_byte = 0;  // data::BitsPerByte of the loss.
};
// Scores the windows of `scored` that ChooseWindows selects, which are the windows that Validate
// scores. See data::TokenView for `reset_at_documents`. Needs vocab^2 x 8 bytes. Throws kUsage if
// the vocabulary exceeds 20,000 tokens.
BigramResult ScoreBigram(const data::Dataset& dataset, data::Split scored, int64_t seq_len,
                         int64_t num_windows, bool reset_at_documents = true);

}  // namespace halflife::eval
