#include "infer/row_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace halflife::infer {

RowGroup::RowGroup(const model::LanguageModel& model, int64_t num_rows, bool always_all)
    : model_(model), always_all_(always_all), rows_(num_rows) {
  const c10::InferenceMode inference;
  shared_ = model.EmptyState(num_rows).layers;
  for (size_t i = 0; i < shared_.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    grows_.push_back(!model.block(layer).mixer().traits().constant_state());
    if (grows_.back()) shared_[i] = {};
  }
}

int64_t RowGroup::num_occupied() const {
  return std::ranges::count_if(rows_, [](const auto& row) { return row.has_value(); });
}

void RowGroup::Place(int64_t row, model::ModelState state) {
  const c10::InferenceMode inference;
  HL_CHECK(!occupied(row), "row ", row, " is occupied");
  HL_CHECK(state.layers.size() == shared_.size(), "a state of ", state.layers.size(), " layers");
  for (size_t layer = 0; layer < shared_.size(); ++layer) {
    if (grows_[layer]) continue;
    std::vector<at::Tensor>& from = state.layers[layer].tensors;
    for (size_t i = 0; i < from.size(); ++i)
      shared_[layer].tensors[i].select(0, row).copy_(from[i].select(0, 0));
    from.clear();
  }
  rows_[row] = std::move(state);
}

void RowGroup::Clear(int64_t row) {
  const c10::InferenceMode inference;
  rows_[row].reset();
  for (model::MixerState& layer : shared_)
    for (at::Tensor& tensor : layer.tensors) tensor.select(0, row).zero_();
}

RowGroup::Range RowGroup::RowsToStep() const {
  if (always_all_) return {0, num_rows()};
  int64_t first = 0, end = num_rows();
  while (first < end && !occupied(first)) ++first;
  while (first < end && !occupied(end - 1)) --end;
  return {first, end - first};
}

at::Tensor RowGroup::Step(std::span<const int32_t> tokens) {
  const c10::InferenceMode inference;
  HL_CHECK(std::ssize(tokens) == num_rows(), tokens.size(), " tokens for ", num_rows(), " rows");
  const Range range = RowsToStep();
  HL_CHECK(range.count > 0, "a step needs at least one text in the group");
  const at::Tensor ids = at::empty({range.count}, at::kLong);
  const at::Tensor positions = at::empty({range.count, 1}, at::kLong);
  for (int64_t i = 0; i < range.count; ++i) {
    const int64_t row = range.first + i;
    if (occupied(row)) model_.RequirePosition(num_tokens(row));
    ids.mutable_data_ptr<int64_t>()[i] = occupied(row) ? tokens[row] : 0;
    positions.mutable_data_ptr<int64_t>()[i] = occupied(row) ? num_tokens(row) : 0;
  }
  const auto token = model::SequenceSlice::OfToken(positions.to(model_.device()));
  at::Tensor logits = model_.StepWith(
      ids.to(model_.device()), token.positions,
      [&](size_t layer, const model::Mixer& mixer, const model::NormedInput& x,
          at::Tensor& first_values) {
        return grows_[layer] ? StepRowByRow(layer, mixer, x, range, first_values)
                             : StepTogether(layer, mixer, x, range, token, first_values);
      });
  for (auto& row : rows_)
    if (row) ++row->num_tokens;
  if (range.count == num_rows()) return logits;
  at::Tensor all = at::zeros({num_rows(), logits.size(1)}, logits.options());
  all.narrow(0, range.first, range.count).copy_(logits);
  return all;
}

at::Tensor RowGroup::StepTogether(size_t layer, const model::Mixer& mixer,
                                  const model::NormedInput& x, Range range,
                                  const model::SequenceSlice& token, at::Tensor& first_values) {
  model::MixerState& shared = shared_[layer];
  if (range.count == num_rows()) return mixer.StepOnInput(x, token, shared, first_values);
  model::MixerState own = shared;
  for (at::Tensor& tensor : own.tensors) tensor = tensor.narrow(0, range.first, range.count);
  at::Tensor y = mixer.StepOnInput(x, token, own, first_values);
  for (size_t i = 0; i < own.tensors.size(); ++i) {  // that the step has replaced
    const at::Tensor rows = shared.tensors[i].narrow(0, range.first, range.count);
    if (!own.tensors[i].is_alias_of(rows)) rows.copy_(own.tensors[i]);
  }
  return y;
}

// A row's input is copied, because the alignment of its address may select another kernel.
at::Tensor RowGroup::StepRowByRow(size_t layer, const model::Mixer& mixer, const at::Tensor& x,
                                  Range range, at::Tensor& first_values) {
  std::vector<at::Tensor> outputs, values;
  for (int64_t i = 0; i < range.count; ++i) {
    const int64_t row = range.first + i;
    const at::Tensor own = x.narrow(0, i, 1).clone();
    at::Tensor own_values =
        first_values.defined() ? first_values.narrow(0, i, 1).clone() : at::Tensor();
    if (occupied(row)) {
      const auto token =
          model::SequenceSlice::Contiguous(1, 1, rows_[row]->num_tokens, model_.device());
      outputs.push_back(mixer.StepWithValues(own, token, rows_[row]->layers[layer], own_values));
    } else {
      outputs.push_back(at::zeros_like(own));
    }
    values.push_back(own_values);
  }
  const auto given = std::ranges::find_if(values, [](const at::Tensor& v) { return v.defined(); });
  if (given != values.end()) {
    const at::Tensor like = *given;
    for (at::Tensor& value : values)
      if (!value.defined()) value = at::zeros_like(like);  // of an empty row
    first_values = at::cat(values);
  }
  return at::cat(outputs);
}

int64_t RowGroup::state_bytes() const {
  int64_t bytes = 0;
  for (const model::MixerState& layer : shared_) bytes += layer.bytes();
  for (const auto& row : rows_) bytes += row ? row->bytes() : 0;
  return bytes;
}

namespace {

// Returns the logits of a few steps of `num_rows` equal rows.
std::vector<at::Tensor> LogitsOfEqualRows(const model::LanguageModel& model, int64_t num_rows) {
  constexpr int kSteps = 4;
  RowGroup group(model, num_rows, /*always_all=*/true);
  for (int64_t row = 0; row < num_rows; ++row) group.Place(row, model.EmptyState(1));
  const int64_t limit = model.max_positions();
  std::vector<at::Tensor> logits;
  for (int step = 0; step < kSteps && (limit == 0 || step < limit); ++step) {
    const auto id = static_cast<int32_t>((7919 * int64_t{step} + 1) % model.config().vocab_size);
    logits.push_back(group.Step(std::vector<int32_t>(static_cast<size_t>(num_rows), id)).cpu());
  }
  return logits;
}

}  // namespace

RowBits CompareRows(const model::LanguageModel& model, int64_t num_rows) {
  const std::vector<at::Tensor> all = LogitsOfEqualRows(model, num_rows);
  const auto equal = [&](const std::vector<at::Tensor>& others) {
    for (size_t step = 0; step < all.size(); ++step)
      if (!others[step].equal(all[step].narrow(0, 0, 1).expand_as(others[step]))) return false;
    return true;
  };
  if (!equal(all)) return {.same_for_index = false, .same_for_count = false};
  return {
      .same_for_index = true,
      .same_for_count = equal(LogitsOfEqualRows(model, 1)) && equal(LogitsOfEqualRows(model, 3))};
}

}  // namespace halflife::infer
