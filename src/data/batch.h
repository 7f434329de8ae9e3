// What the model trains on: B rows of T tokens, packed from documents or each a labelled one.
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
  // [B, T] next token, or the label of a labelled row. kNoTarget marks a token without a target:
  // the eos of a document (unless text is read without resets), padding, and every token of a
  // labelled row that has no label.
  std::vector<int32_t> targets;
  // [num_pieces + 1], strictly ascending: the starts of document pieces over the flattened B*T
  // tokens, then B*T. Every row's start is one of them. Text that is read without resets has no
  // other starts.
  std::vector<int32_t> cu_seqlens;
  // [B] global sample numbers, of which order and dropout are functions; kNoSample for the rows,
  // behind all others, that pad the last step of an epoch: they have no targets.
  std::vector<uint64_t> samples;
  int64_t num_targets = 0;  // targets that are not kNoTarget
};

}  // namespace halflife::data
