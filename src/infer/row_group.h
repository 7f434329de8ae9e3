// Decodes a fixed number of rows together, each at its own position. Rows may join and leave
// between two steps.
//
// If a row's bits depend on the number of rows, every step computes all rows, also the empty ones.
// Matrix products then always have the same shape: libraries choose a kernel by shape, and another
// kernel rounds differently. Otherwise, a step computes the rows from the first to the last
// occupied one. Layers whose state grows (attention) run row by row, because each row has its own
// number of keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/language_model.h"

namespace halflife::infer {

class RowGroup {
 public:
  // Borrows `model`. always_all: every step computes all rows.
  RowGroup(const model::LanguageModel& model, int64_t num_rows, bool always_all);

  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  bool occupied(int64_t row) const { return rows_[row].has_value(); }
  int64_t num_occupied() const;
  // Puts the state [1, ...] of a text into an empty row.
  void Place(int64_t row, model::ModelState state);
  void Clear(int64_t row);
  // Returns the number of tokens of an occupied row.
  int64_t num_tokens(int64_t row) const { return rows_[row]->num_tokens; }
  // Decodes one token per row. tokens[i] is ignored if row i is empty. -> logits [R, vocab] fp32;
  // those of empty rows have no meaning.
  at::Tensor Step(std::span<const int32_t> tokens);
  // Returns the bytes of all states, including those of empty rows.
  int64_t state_bytes() const;

 private:
  // The rows that a step computes.
  struct Range {
    int64_t first, count;
  };
  Range RowsToStep() const;
  at::Tensor StepTogether(size_t layer, const model::Mixer& mixer, const model::NormedInput& x,
                          Range range, const model::SequenceSlice& token, at::Tensor& first_values);
  at::Tensor StepRowByRow(size_t layer, const model::Mixer& mixer, const at::Tensor& x, Range range,
                          at::Tensor& first_values);

  const model::LanguageModel& model_;
  const bool always_all_;
  std::vector<bool> grows_;  // Whether the state of a layer grows.
  // The states of layers of constant size, [R, ...]. Empty for layers whose state grows.
  std::vector<model::MixerState> shared_;
  // Per occupied row: the states [1, ...] of the layers that grow. The other layers are empty.
  std::vector<std::optional<model::ModelState>> rows_;
};

// How the logits of a row depend on the other rows of a step. Decodes a few tokens, the same in all
// rows, with 1, 3 and `num_rows` rows. BLAS promises nothing, but products with few rows depend on
// neither on the CPUs that were tested.
struct RowBits {
  bool same_for_index;  // among `num_rows` rows
  bool same_for_count;  // and with fewer rows
};
RowBits CompareRows(const model::LanguageModel& model, int64_t num_rows);

}  // namespace halflife::infer
