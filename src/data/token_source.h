// An endless, seeded stream of training batches for one data-parallel rank.
//
// Window w of an epoch covers tokens [w T, w T + T] of the concatenated documents (T + 1 tokens, T
// apart), or is row w of a dataset of labelled rows. Sample g of the run is window Permute(seed,
// epoch, g mod W) of epoch g / W, computed in O(1) and without an index file.
//
// Step t uses samples t G .. t G + G - 1, where G is the global batch. SampleOrder describes how
// steps can instead end with an epoch. dp rank d uses a contiguous share of the step's samples or,
// with in_turn, its i-th micro-batch is number i dp_size + d of the step. The set and order of
// samples therefore do not depend on the world size, the micro-batch size or the accumulation, and
// the cursor is a single number.
//
//   TokenSource source(dataset, Split::kTrain,
//                      {.seq_len = 512, .micro_batch = 4, .global_batch = 16});
//   source.Seek(cursor.next_sample);
//   // One micro-batch; G / (micro_batch dp_size) of them make a step.
//   const Batch batch = source.Next();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/blend.h"
#include "data/dataset.h"
#include "data/sample_order.h"

namespace halflife::data {

struct TokenSourceConfig {
  int64_t seq_len = 512;     // T
  int64_t micro_batch = 8;   // rows of one Batch
  int64_t global_batch = 8;  // rows of one step over all ranks; a multiple of micro_batch * dp_size
  int dp_rank = 0;
  int dp_size = 1;
  bool in_turn = false;
  uint64_t seed = 0;
  bool reset_at_documents = true;  // see TokenView
  int prefetch = 4;                // batches that a separate thread reads ahead; 0: none
  EpochEnd epoch_end = EpochEnd::kFill;
  // Called for each batch by the thread that read it. Arguments are Unix time in microseconds.
  std::function<void(int64_t begin_us, int64_t end_us)> on_read = nullptr;
};

struct TokenView;

class TokenSource {
 public:
  // `dataset` is borrowed and must outlive the source. Throws Error kData if the split has fewer
  // than seq_len + 1 tokens. Throws Error kUsage if sizes do not divide, or if seq_len differs from
  // that of labelled rows.
  TokenSource(const Dataset& dataset, Split split, const TokenSourceConfig& config);
  // The rows of a blend. `views` has the tokens of each source of the blend, which borrow their
  // datasets. config.epoch_end must be kFill, and config.seed is not used.
  TokenSource(std::vector<TokenView> views, Blend blend, const TokenSourceConfig& config);
  ~TokenSource();

  // Blocks until the next micro-batch is available. Rethrows errors of the reader.
  Batch Next();

  int64_t num_windows() const;  // For a blend, the sum over its sources.
  const SampleOrder& order() const;
  const Blend* blend() const;  // Null for one dataset.
  // Returns the global number of the first sample of the next micro-batches of all ranks. Between
  // steps this is order().FirstSample of the next step.
  uint64_t next_sample() const;
  // Returns the row of the split that a sample is. Not for blends.
  int64_t WindowOf(uint64_t sample) const;
  // Discards batches that were read ahead and continues at this sample, which must be the first of
  // a step.
  void Seek(uint64_t next_sample);
  // Returns the seconds that Next has waited since the last call of this function.
  double TakeWaitSeconds();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Access to tokens for evaluation, independent of where they are stored: concatenated documents,
// each with its eos.
struct TokenView {
  std::string name;  // for error messages, e.g. "the validation split"
  SplitInfo info;
  int32_t eos_id = 0;
  std::function<void(int64_t begin, std::span<int32_t> ids)> read;  // like Dataset::Read
  // If true, each document of text is a separate sequence, and its eos has no target. If false, a
  // row of text is one sequence: states, positions and visible keys continue across its documents,
  // and the target of an eos is the first token of the next document. Has no effect on labelled
  // rows.
  bool reset_at_documents = true;
  // Only for labelled rows; 0 and null for text.
  int64_t row_len = 0;
  RowLabels labels = RowLabels::kNone;
  std::vector<std::string> classes = {};  // class names; only with RowLabels::kClasses
  std::function<void(int64_t begin, std::span<int32_t> labels)> read_labels = nullptr;
  // Like Dataset::DocumentStarts, for rows of several documents. Null: each row is one document.
  std::function<std::vector<int64_t>(int64_t begin, int64_t end)> document_starts = nullptr;
};
// `dataset` is borrowed by the view.
TokenView ViewOf(const Dataset& dataset, Split split, bool reset_at_documents = true);

// Reads the windows with these numbers, in this order, as one batch.
Batch ReadWindows(const TokenView& tokens, int64_t seq_len, std::span<const int64_t> windows);
// Reads the windows [first, first + count).
Batch ReadWindows(const TokenView& tokens, int64_t seq_len, int64_t first, int64_t count);
// Reads windows of text that begin `stride` tokens apart: window w begins at token w stride.
// Windows overlap if stride < seq_len.
Batch ReadSlidingWindows(const TokenView& tokens, int64_t seq_len, int64_t stride,
                         std::span<const int64_t> windows);
Batch ReadWindows(const Dataset& dataset, Split split, int64_t seq_len, int64_t first,
                  int64_t count);
// Returns floor((num_tokens - 1) / seq_len), at least 0, for text, and the number of all rows for
// labelled rows (row_len > 0).
int64_t NumWindows(const SplitInfo& split, int64_t row_len, int64_t seq_len);
// As above. Throws Error kUsage if the view has labelled rows and seq_len differs from their
// length.
int64_t NumWindows(const TokenView& tokens, int64_t seq_len);

}  // namespace halflife::data
