#include "eval/scorer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "data/batch.h"

namespace halflife::eval {
namespace {

size_t LongestOf(std::span<const std::span<const int32_t>> sequences) {
  size_t longest = 0;
  for (const auto& sequence : sequences) longest = std::max(longest, sequence.size());
  return longest;
}

void CheckIds(std::span<const int32_t> ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    HL_CHECK_AS(ExitCode::kUsage, ids[i] >= 0 && ids[i] < vocab_size, "token ", ids[i],
                " at index ", i, " is outside the model's vocabulary of ", vocab_size,
                ". Use ids of 0 to ", vocab_size - 1, ".");
  }
}

// Returns losses [B, T] fp32 on the CPU. `tokens` and `targets` are on the CPU as well.
at::Tensor LossesOf(const model::LanguageModel& model, const at::Tensor& tokens,
                    const at::Tensor& targets, const model::SequenceSlice& slice,
                    model::ModelState* state = nullptr) {
  const at::Device device = model.device();
  return model.TokenLosses(tokens.to(device), targets.to(device), {.slice = &slice}, state)
      .to(at::kCPU)
      .contiguous();
}

// Scores every token but the first, in rows that each hide one token.
std::vector<float> ScoreHidden(const model::LanguageModel& model, std::span<const int32_t> sequence,
                               const ScoreConfig& config) {
  const auto length = static_cast<int64_t>(sequence.size());
  const int64_t max_rows = std::max<int64_t>(1, config.batch_tokens / std::max<int64_t>(1, length));
  std::vector<float> scores;
  for (int64_t first = 1; first < length; first += max_rows) {
    const int64_t rows = std::min(max_rows, length - first);
    at::Tensor tokens = at::empty({rows, length}, at::kLong);
    at::Tensor targets = at::full({rows, length}, data::kNoTarget, at::kLong);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t hidden = row * length + first + row;
      std::ranges::copy(sequence, tokens.mutable_data_ptr<int64_t>() + row * length);
      targets.mutable_data_ptr<int64_t>()[hidden] = sequence[first + row];
      tokens.mutable_data_ptr<int64_t>()[hidden] = *model.objective().mask_token();
    }
    const auto slice = model::SequenceSlice::Contiguous(rows, length, 0, model.device());
    const at::Tensor losses = LossesOf(model, tokens, targets, slice);
    for (int64_t row = 0; row < rows; ++row)
      scores.push_back(-losses.const_data_ptr<float>()[row * length + first + row]);
  }
  return scores;
}

}  // namespace

std::vector<std::vector<size_t>> ScoreBatches(std::span<const size_t> lengths,
                                              const ScoreConfig& config) {
  std::vector<size_t> order;
  for (size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] >= 2) order.push_back(i);
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return lengths[i]; });
  std::vector<std::vector<size_t>> batches;
  size_t room = 0;  // Rows that still fit into the last batch.
  for (const size_t i : order) {
    if (room == 0) {
      batches.emplace_back();
      const auto width = std::min<size_t>(lengths[i], static_cast<size_t>(config.piece));
      room = std::max<size_t>(1, static_cast<size_t>(config.batch_tokens) / width);
    }
    batches.back().push_back(i);
    --room;
  }
  return batches;
}

std::vector<std::vector<float>> ScoreBatch(const model::LanguageModel& model,
                                           std::span<const std::span<const int32_t>> sequences,
                                           const ScoreConfig& config) {
  const c10::InferenceMode inference;
  const auto rows = static_cast<int64_t>(sequences.size());
  std::vector<std::vector<float>> scores(sequences.size());
  for (const auto& sequence : sequences) CheckIds(sequence, model.config().vocab_size);
  if (model.objective().mask_token()) {
    std::ranges::transform(sequences, scores.begin(), [&](std::span<const int32_t> sequence) {
      return ScoreHidden(model, sequence, config);
    });
    return scores;
  }
  HL_CHECK_AS(ExitCode::kUsage, model.objective().predicts_next_token(),
              "the model's objective is ", model.config().objective.name(),
              ", but `score` needs next_token or masked_token. Use `eval` for the loss of other "
              "objectives.");
  const auto inputs_of_longest = static_cast<int64_t>(LongestOf(sequences)) - 1;
  // Layers whose outputs depend on the row length would treat padding as keys and a piece as a
  // whole row.
  if (model.AnyLayerHas(&model::MixerTraits::asks_row_length) &&
      (rows > 1 || inputs_of_longest > config.piece)) {
    std::ranges::transform(sequences, scores.begin(), [&](std::span<const int32_t> sequence) {
      const ScoreConfig whole = {.piece = static_cast<int64_t>(sequence.size()),
                                 .batch_tokens = config.batch_tokens};
      return ScoreBatch(model, {&sequence, 1}, whole).front();
    });
    return scores;
  }
  model::ModelState state = model.EmptyState(rows);
  for (int64_t begin = 0; begin < inputs_of_longest; begin += config.piece) {
    const int64_t length = std::min(config.piece, inputs_of_longest - begin);
    // Padding follows a row's own tokens, which never see it.
    at::Tensor tokens = at::zeros({rows, length}, at::kLong);
    at::Tensor targets = at::full({rows, length}, data::kNoTarget, at::kLong);
    const auto count_of = [&](size_t row) {
      return std::clamp<int64_t>(static_cast<int64_t>(sequences[row].size()) - 1 - begin, 0,
                                 length);
    };
    for (size_t row = 0; row < sequences.size(); ++row) {
      const int32_t* ids = sequences[row].data() + begin;
      int64_t* const token_row =
          tokens.mutable_data_ptr<int64_t>() + static_cast<int64_t>(row) * length;
      int64_t* const target_row =
          targets.mutable_data_ptr<int64_t>() + static_cast<int64_t>(row) * length;
      for (int64_t i = 0; i < count_of(row); ++i) token_row[i] = ids[i], target_row[i] = ids[i + 1];
    }
    const auto slice = model::SequenceSlice::Contiguous(rows, length, begin, model.device());
    const at::Tensor losses = LossesOf(model, tokens, targets, slice, &state);
    for (size_t row = 0; row < sequences.size(); ++row) {
      const float* loss = losses.const_data_ptr<float>() + static_cast<int64_t>(row) * length;
      for (int64_t i = 0; i < count_of(row); ++i) scores[row].push_back(-loss[i]);
    }
  }
  return scores;
}

namespace {

// Returns [1, length] of `ids`, starting at index `begin`.
at::Tensor Ids(const std::vector<int32_t>& ids, int64_t begin, int64_t length, at::Device device) {
  return at::from_blob(const_cast<int32_t*>(ids.data()) + begin, {1, length}, at::kInt)
      .to(device, at::kLong);
}

}  // namespace

at::Tensor CarriedLosses(const model::LanguageModel& model, const data::Batch& batch,
                         int64_t piece) {
  HL_CHECK(piece > 0 && model.constant_state(),
           "carried losses need a state of constant size and pieces of at least 1 token; piece is ",
           piece);
  const at::Device device = model.device();
  at::Tensor losses =
      at::empty({1, batch.batch_size * batch.seq_len}, at::dtype(at::kFloat).device(device));
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int64_t start = batch.cu_seqlens[document], end = batch.cu_seqlens[document + 1];
    model::ModelState state = model.EmptyState(1);
    for (int64_t begin = start; begin < end; begin += piece) {
      const int64_t length = std::min(piece, end - begin);
      const auto slice = model::SequenceSlice::Contiguous(1, length, begin - start, device);
      const at::Tensor tokens = Ids(batch.inputs, begin, length, device),
                       targets = Ids(batch.targets, begin, length, device);
      losses.narrow(1, begin, length)
          .copy_(model.TokenLosses(tokens, targets, {.slice = &slice}, &state));
    }
  }
  return losses.view({batch.batch_size, batch.seq_len});
}

}  // namespace halflife::eval
