// The mean loss over windows of a split, or of other text, and the accuracy on labelled rows and
// hidden tokens.
// Windows are dealt over ranks and summed in fp64 in window order, so that the result does not
// depend on the world size beyond the model's own rounding.
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
  int64_t seq_len = 512;
  int64_t num_windows = 0;  // the first so many; 0: all
  // Windows of next tokens begin so many tokens apart, and each but the first scores its last so
  // many, which have seq_len - stride before them or more; 0: windows lie side by side.
  int64_t stride = 0;
  int64_t piece = 0;                         // CarriedLosses in such pieces; 0: whole windows
  int64_t batch = 8;                         // rows of one forward
  int64_t bin = 0;                           // tokens of a position bin; 0: none are told
  bool recall = false;                       // by what the text has said before, of next tokens
  AttentionStatistics* attention = nullptr;  // filled with this rank's windows; borrowed
  // This rank has a slice of each of its rows (borrowed); null: it has rows of its own.
  const model::SequenceParallel* parallel = nullptr;
};
// The score of the rows of one segment.
struct SegmentScore {
  std::string name;
  double loss = 0, accuracy = 0;
  int64_t num_targets = 0;
};
struct ValidationResult {
  double loss = 0;  // mean -ln p per target
  // What the Trainer of transformers calls eval_loss: the mean over batches, weighted by their
  // rows, of each batch's mean per target. The same where all rows have as many targets; elsewhere
  // it depends on `batch`.
  double loss_hf = 0;
  int64_t num_targets = 0;
  // data::BitsPerByte of the loss of text whose next tokens are predicted.
  std::optional<double> bits_per_byte;
  // Else the share of labels, of hidden tokens and labelled rows, that are the likeliest token.
  std::optional<double> accuracy;
  std::vector<SegmentScore> segments;    // of labelled rows, where there are several kinds
  std::vector<PositionScore> positions;  // those bins that have targets
  std::optional<ClassScores> classes;    // of documents
  std::vector<RecallScore> recall;       // where it was asked for: all four
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
