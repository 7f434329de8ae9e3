// One batch of training data: B rows of T tokens. Rows are packed from documents, or each is a
// labelled row.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::data {

constexpr int32_t kNoTarget = -100;
constexpr uint64_t kNoSample = UINT64_MAX;

struct Batch {
  int64_t batch_size = 0;       // B
  int64_t seq_len = 0;          // T
  std::vector<int32_t> inputs;  // [B, T] token ids
  // [B, T] the next token, or the label of a labelled row. kNoTarget marks a token without a
  // target: the eos of a document (unless text is read without resets), padding, and every token of
  // a labelled row without a label.
  std::vector<int32_t> targets;
  // [num_pieces + 1], strictly ascending: the starts of document pieces over the flattened B*T
  // tokens, followed by B*T. The start of every row is included. Text that is read without resets
  // has no other starts.
  std::vector<int32_t> cu_seqlens;
  // [B] global sample numbers, which determine order and dropout. kNoSample marks the padding rows
  // of the last step of an epoch, which come last and have no targets.
  std::vector<uint64_t> samples;
  int64_t num_targets = 0;  // targets that are not kNoTarget
};

}  // namespace halflife::data
