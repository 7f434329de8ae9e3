// Losses over windows, split by groups of their targets: by position in the window, by whether the
// target occurred earlier in the text, and by the length of its context. Sums are fp64 in the order
// of windows, so they depend neither on the batch size nor on the number of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "dist/communicator.h"
#include "eval/class_scores.h"
#include "model/objectives/objective.h"

namespace halflife::eval {

// Finds the targets that occurred earlier in their text: the share of the loss that recall from
// context could reduce. Arora et al. (2024, "Based", 5.4) call a later occurrence of a token
// "associative recall". The bigram is a stricter criterion (as in Zoology, but without its limit on
// the frequency in the training data).
//
// Flags [B, T], 0 or 1; 0 for tokens without a target. The context of token t is what the model
// sees: the tokens of the same document in the same row, up to and including t.
struct RecallFlags {
  std::vector<uint8_t> token_seen;   // The target occurs in the context.
  std::vector<uint8_t> bigram_seen;  // The target has followed the token at t before.
};
// Returns the flags of next-token targets, on the host.
RecallFlags FindRecalled(const data::Batch& batch);

// Returns the sums of the rows of x [B, T] as [B] fp64 on the host.
at::Tensor RowSums(const at::Tensor& x);

// The score of the targets whose inputs are at positions [begin, begin + bin) of their windows.
struct PositionScore {
  int64_t begin = 0, num_targets = 0;
  double loss = 0;
};
// The score of next tokens by whether they occurred earlier in their text (RecallFlags).
struct RecallScore {
  std::string name;  // token_seen, token_new, bigram_seen or bigram_new.
  int64_t num_targets = 0;
  double loss = 0;  // NaN if there are no such targets.
};
// Holds the loss and the number of targets for each window and part.
class PartSums {
 public:
  PartSums(int64_t num_windows, int64_t num_parts)
      : num_parts_(num_parts), sums_(static_cast<size_t>(2 * num_parts * num_windows)) {}

  // Stores a part of the windows starting at `window`: its losses and numbers of targets per token,
  // [B, any].
  void Add(int64_t window, int64_t part, const at::Tensor& losses, const at::Tensor& num_targets);
  struct Score {
    int64_t num_targets = 0;
    double loss = 0;  // NaN if there are no targets.
  };
  // Returns the score of each part. Collective if there are any parts. `name` names the collective.
  std::vector<Score> Scores(dist::Communicator& control, const char* name);

 private:
  int64_t num_parts_;
  std::vector<double> sums_;  // [window][part][loss, targets]
};

// Sums by position in the window, in bins of `bin` tokens. 0: no bins.
class BinSums {
 public:
  BinSums(int64_t num_windows, int64_t seq_len, int64_t bin);

  // Adds losses and asked [B, T] of the windows starting at `window`. `asked` is true for tokens
  // that have a target.
  void Add(int64_t window, const at::Tensor& losses, const at::Tensor& asked);
  std::vector<PositionScore> Scores(dist::Communicator& control);  // Collective.

 private:
  int64_t bin_, num_bins_;
  PartSums sums_;
};

// The score of the targets with at least half a window of context: seq_len / 2 (rounded up) earlier
// tokens of their document in the window. Does nothing if `wanted` is false.
class ContextSums {
 public:
  ContextSums(int64_t num_windows, bool wanted);

  // Adds losses and asked [B, T] of the windows starting at `window`, which are the rows of
  // `batch`.
  void Add(int64_t window, const data::Batch& batch, const at::Tensor& losses,
           const at::Tensor& asked);
  std::optional<PartSums::Score> Score(dist::Communicator& control);  // Collective.

 private:
  bool wanted_;
  PartSums sums_;
};

// Sums by the groups of RecallFlags. Does nothing if `wanted` is false.
class RecallSums {
 public:
  RecallSums(int64_t num_windows, bool wanted);

  // Adds losses and asked [B, T] of the windows starting at `window`, which are the rows of
  // `batch`.
  void Add(int64_t window, const data::Batch& batch, const at::Tensor& losses,
           const at::Tensor& asked);
  std::vector<RecallScore> Scores(dist::Communicator& control);  // Collective.

 private:
  bool wanted_;
  PartSums sums_;
};

// Collects a classifier's predictions for the documents of all windows, which may be on different
// ranks.
class ClassTable {
 public:
  // Stores nothing if the objective has no classifier.
  ClassTable(int64_t num_windows, const model::Objective& objective)
      : num_classes_(objective.classifier() ? objective.classifier()->num_classes : 0),
        rows_(num_classes_ == 0 ? 0 : static_cast<size_t>(num_windows * width())) {}

  // Adds the documents of the windows starting at `window`: ln p [P, num_classes] for the batch's P
  // documents.
  void Add(int64_t window, const data::Batch& batch, const at::Tensor& log_probs);
  std::optional<ClassScores> Scores(dist::Communicator& control);  // Collective.

 private:
  int64_t width() const { return num_classes_ + 1; }

  int64_t num_classes_;  // 0: there is no classifier.
  // [window][label + 1, ln p of each class]. All 0 for windows that this rank has not scored.
  std::vector<double> rows_;
};

}  // namespace halflife::eval
