// The mean loss over windows of a split, or of other text, and the accuracy on labelled rows and
// hidden tokens.
//
// A window is window_len consecutive tokens, the unit that is chosen and scored whole. A row is the
// seq_len tokens that the model reads at once, from an empty state. A window is one row, unless a
// table by length cuts it into several. Rows are dealt over ranks and summed in fp64 in row order,
// so the result does not depend on the world size beyond the model's own rounding.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "dist/communicator.h"
#include "eval/class_scores.h"
#include "eval/part_sums.h"
#include "model/language_model.h"
#include "model/sequence_parallel.h"

namespace halflife::eval {

class AttentionStatistics;

struct ValidationConfig {
  int64_t seq_len = 512;    // tokens of a row
  int64_t num_windows = 0;  // as ChooseWindows takes it; 0: all
  int64_t window_len = 0;   // tokens of a window, a multiple of seq_len; 0: seq_len
  // If above 0, rows of next tokens begin this many tokens apart. A row scores its last `stride`
  // targets, which have at least seq_len - stride tokens before them, also from the window before.
  // The split's first row scores all of its targets. 0: rows lie side by side.
  int64_t stride = 0;
  int64_t piece = 0;                         // CarriedLosses in such pieces; 0: whole rows
  int64_t batch = 8;                         // rows of one forward
  int64_t bin = 0;                           // tokens of a position bin; 0: no bins
  bool recall = false;                       // scores by what the text has said before
  bool half_context = false;                 // scores the targets of ContextSums
  AttentionStatistics* attention = nullptr;  // filled with this rank's rows; borrowed
  // This rank has a slice of each of its rows (borrowed); null: it has rows of its own.
  const model::SequenceParallel* parallel = nullptr;
};
// The score of the rows of one part of a split: a segment of labelled rows, or a source of text. A
// row that lies in two sources counts for the source of its first token.
struct PartScore {
  std::string name;
  double loss = 0;
  std::optional<double> accuracy;  // as ValidationResult's
  int64_t num_targets = 0;
};
struct ValidationResult {
  double loss = 0;  // mean -ln p per target
  // What the Trainer of transformers calls eval_loss: the mean over batches, weighted by their
  // rows, of each batch's mean per target. The same where all rows have as many targets; elsewhere
  // it depends on `batch`.
  double loss_hf = 0;
  int64_t num_targets = 0;
  int64_t num_windows = 0, num_available = 0;  // scored; of the split
  // data::BitsPerByte of the loss of text whose next tokens are predicted.
  std::optional<double> bits_per_byte;
  // Else the share of labels, of hidden tokens and labelled rows, that are the likeliest token.
  std::optional<double> accuracy;
  // Those that have scored rows, if the split has several.
  std::vector<PartScore> segments, sources;
  std::vector<PositionScore> positions;         // those bins that have targets
  std::optional<ClassScores> classes;           // of documents
  std::vector<RecallScore> recall;              // where it was asked for: all four
  std::optional<PartSums::Score> half_context;  // if asked for
  double perplexity() const;
  double perplexity_hf() const;
};
// Error kUsage where the objective wants other labels than stand beside the tokens, or another
// number of classes.
void RequireLabelsOf(const model::LanguageModel& model, const data::TokenView& tokens);

// The number of windows, at least 1. Error kData where the tokens are no whole one.
int64_t RequireWindows(const data::TokenView& tokens, int64_t seq_len);

// Collective over `control`. Errors as RequireWindows' and RequireLabelsOf's.
ValidationResult Validate(const model::LanguageModel& model, const data::TokenView& tokens,
                          const ValidationConfig& config, dist::Communicator& control);

}  // namespace halflife::eval
