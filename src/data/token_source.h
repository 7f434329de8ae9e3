// The endless, seeded stream of training batches of one data-parallel rank.
//
// Window w of an epoch covers tokens [w T, w T + T] of the concatenated documents (T + 1 tokens, T
// apart), or is row w of a dataset of labelled rows. Sample g of the run is window
// Permute(seed, epoch, g mod W) of epoch g / W, in O(1) and without an index file. Step t uses
// samples t G .. t G + G - 1 (G = global batch; SampleOrder tells how steps may end with an epoch
// instead); dp rank d takes a contiguous share of them, or (in_turn) its i-th micro-batch is
// number i dp_size + d of the step's. So the set and order of samples never
// depend on the world size, the micro batch or the accumulation, and the cursor is one number.
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

#include "data/batch.h"
#include "data/dataset.h"
#include "data/sample_order.h"

namespace halflife::data {

// Saved in checkpoints; raised when the order's definition changes.
constexpr uint32_t kOrderVersion = 1;

struct TokenSourceConfig {
  int64_t seq_len = 512;     // T
  int64_t micro_batch = 8;   // rows of one Batch
  int64_t global_batch = 8;  // rows of one step over all ranks; a multiple of micro_batch * dp_size
  int dp_rank = 0;
  int dp_size = 1;
  bool in_turn = false;
  uint64_t seed = 0;
  bool reset_at_documents = true;  // as in TokenView
  int prefetch = 4;                // batches read ahead by a thread of its own; 0: none
  EpochEnd epoch_end = EpochEnd::kFill;
  // Called for each batch that was read, by the thread that did: Unix time in microseconds.
  std::function<void(int64_t begin_us, int64_t end_us)> on_read = nullptr;
};

// A bijection of [0, size) for every (seed, epoch): a Feistel network on the next power of four,
// cycle-walked.
uint64_t PermuteIndex(uint64_t index, uint64_t size, uint64_t seed, uint64_t epoch);

class TokenSource {
 public:
  // `dataset` is borrowed for the source's life. Error kData where the split holds fewer than
  // seq_len + 1 tokens; kUsage for sizes that do not divide, and for a seq_len other than that of
  // labelled rows.
  TokenSource(const Dataset& dataset, Split split, const TokenSourceConfig& config);
  ~TokenSource();

  // Blocks until the next micro-batch is there. Reader errors are thrown here.
  Batch Next();

  int64_t num_windows() const;
  const SampleOrder& order() const;
  // The global sample number that the next micro-batches of all ranks start with: between steps,
  // order().FirstSample of the next one.
  uint64_t next_sample() const;
  // Drops what was read ahead and continues at this sample, the first of a step.
  void Seek(uint64_t next_sample);
  // Seconds Next has waited since the last call of this function.
  double TakeWaitSeconds();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Tokens to evaluate on, wherever they are: documents one after the other, each with its eos.
struct TokenView {
  std::string name;  // for errors, e.g. "the validation split"
  SplitInfo info;
  int32_t eos_id = 0;
  std::function<void(int64_t begin, std::span<int32_t> ids)> read;  // as Dataset::Read
  // True: each document of text is a sequence of its own, and its eos has no target. False: a row
  // of text is one sequence. States, positions and visible keys continue across its documents, and
  // the target of an eos is the first token of the next document. Labelled rows ignore it.
  bool reset_at_documents = true;
  // Of labelled rows; 0 and null: text.
  int64_t row_len = 0;
  RowLabels labels = RowLabels::kNone;
  std::vector<std::string> classes = {};  // names, of RowLabels::kClasses
  std::function<void(int64_t begin, std::span<int32_t> labels)> read_labels = nullptr;
  // As Dataset::DocumentStarts, of rows that hold several; null: a row is one document.
  std::function<std::vector<int64_t>(int64_t begin, int64_t end)> document_starts = nullptr;
};
// `dataset` is borrowed.
TokenView ViewOf(const Dataset& dataset, Split split, bool reset_at_documents = true);

// Reads these windows, by their numbers and in this order, as one batch.
Batch ReadWindows(const TokenView& tokens, int64_t seq_len, std::span<const int64_t> windows);
// Reads the windows [first, first + count).
Batch ReadWindows(const TokenView& tokens, int64_t seq_len, int64_t first, int64_t count);
// Reads windows of text that begin `stride` tokens apart: window w begins at token w stride.
// Windows overlap if stride < seq_len.
Batch ReadSlidingWindows(const TokenView& tokens, int64_t seq_len, int64_t stride,
                         std::span<const int64_t> windows);
Batch ReadWindows(const Dataset& dataset, Split split, int64_t seq_len, int64_t first,
                  int64_t count);
// Of text floor((num_tokens - 1) / seq_len), at least 0; of labelled rows (row_len > 0) all.
int64_t NumWindows(const SplitInfo& split, int64_t row_len, int64_t seq_len);
// The same. Labelled rows are as long as they are: Error kUsage for another seq_len.
int64_t NumWindows(const TokenView& tokens, int64_t seq_len);

}  // namespace halflife::data
