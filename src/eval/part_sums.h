// Losses over windows by the parts of their targets: by position in the window, by whether the text
// has said them before, and by the length of their context. The sums are fp64 and in the order of
// windows, so they depend neither on the grouping into batches nor on the number of ranks.
//
//   BinSums bins(num_windows, /*seq_len=*/512, /*bin=*/64);
//   bins.Add(/*window=*/3, losses, targets.ge(0));
//   const std::vector<PositionScore> scores = bins.Scores(control);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "dist/communicator.h"

namespace halflife::eval {

// x [B, T] -> the sums of its rows, [B] fp64 on the host.
at::Tensor RowSums(const at::Tensor& x);

// The score of the targets whose inputs stand at [begin, begin + bin) of their windows.
struct PositionScore {
  int64_t begin = 0, num_targets = 0;
  double loss = 0;
};
// The score of next tokens, by whether their text has said them before (eval/recall.h).
struct RecallScore {
  std::string name;  // token_seen, token_new, bigram_seen, bigram_new
  int64_t num_targets = 0;
  double loss = 0;  // NaN where there are no such targets
};
// Holds, for each window and part, a loss and how many targets it is of.
class PartSums {
 public:
  PartSums(int64_t num_windows, int64_t num_parts)
      : num_parts_(num_parts), sums_(static_cast<size_t>(2 * num_parts * num_windows)) {}

  // Adds losses and num_targets of the part, [B, any], of the windows from `window` on.
  void Add(int64_t window, int64_t part, const at::Tensor& losses, const at::Tensor& num_targets);
  struct Score {
    int64_t num_targets = 0;
    double loss = 0;  // NaN: no targets
  };
  // Returns the score of each part. Collective where there are any; `name` is the exchange's.
  std::vector<Score> Scores(dist::Communicator& control, const char* name);

 private:
  int64_t num_parts_;
  std::vector<double> sums_;  // [window][part][loss, targets]
};

// By position, in bins of so many tokens; 0: none.
class BinSums {
 public:
  BinSums(int64_t num_windows, int64_t seq_len, int64_t bin);

  // losses and asked [B, T] of the windows from `window` on.
  void Add(int64_t window, const at::Tensor& losses, const at::Tensor& asked);
  std::vector<PositionScore> Scores(dist::Communicator& control);  // collective

 private:
  int64_t bin_, num_bins_;
  PartSums sums_;
};

// The score of the targets that have at least half a window of context: seq_len / 2 tokens, rounded
// up, of their own document before them in the window. Adds nothing if it is not wanted.
class ContextSums {
 public:
  ContextSums(int64_t num_windows, bool wanted);

  // losses and asked [B, T] of the windows from `window` on, which are those of `batch`.
  void Add(int64_t window, const data::Batch& batch, const at::Tensor& losses,
           const at::Tensor& asked);
  std::optional<PartSums::Score> Score(dist::Communicator& control);  // collective

 private:
  bool wanted_;
  PartSums sums_;
};

// By eval/recall.h's groups; not wanted: none.
class RecallSums {
 public:
  RecallSums(int64_t num_windows, bool wanted);

  // losses and asked [B, T] of the windows from `window` on, which are those of `batch`.
  void Add(int64_t window, const data::Batch& batch, const at::Tensor& losses,
           const at::Tensor& asked);
  std::vector<RecallScore> Scores(dist::Communicator& control);  // collective

 private:
  bool wanted_;
  PartSums sums_;
};

}  // namespace halflife::eval
