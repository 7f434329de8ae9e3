#include "train/loop/host_slices.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "train/step/arena_optimizer.h"

namespace halflife::train {

void HostSlices::Allocate() {
  const int64_t held = arena_.layout().num_held(arena_.layout().num_elements());
  while (arrays_.size() < arena_.stored_arrays().size())
    arrays_.push_back(
        at::zeros({held}, at::TensorOptions(at::kFloat).pinned_memory(arena_.main().is_cuda())));
}

ckpt::ArenaView HostSlices::View() {
  ckpt::ArenaView view = {.layout = &arena_.layout(), .arrays = {}};
  const std::vector<ParameterArena::StoredArray> stored = arena_.stored_arrays();
  for (size_t i = 0; i < stored.size(); ++i)
    view.arrays.push_back({.name = stored[i].name,
                           .data = arrays_.empty() ? nullptr : arrays_[i].mutable_data_ptr<float>(),
                           .sliced_end = arena_.layout().num_elements()});
  return view;
}

template <typename Copy>
void HostSlices::ForEachPart(const Copy& copy) {
  const dist::ParameterLayout& layout = arena_.layout();
  const std::vector<ParameterArena::StoredArray> stored = arena_.stored_arrays();
  for (size_t i = 0; i < arrays_.size(); ++i) {
    for (const dist::Bucket& bucket : layout.buckets()) {
      const auto range = layout.SliceOf(bucket, slice_);
      const at::Tensor host = arrays_[i].narrow(0, range.slice_begin, range.count);
      const ParameterArena::StoredArray& from = stored[i];
      if (from.trained && bucket.frozen) continue;
      const int64_t place =
          from.trained
              ? layout.PlaceOf(range.arena_begin, arena_.states_division())
              : layout.PlaceOf({.arena_begin = range.arena_begin, .slice_begin = range.slice_begin},
                               from.sliced_end);
      copy(host, from.tensor->narrow(0, place, range.count));
    }
  }
}

void HostSlices::ForEachFrozenPart(
    const std::function<void(std::span<float>, std::span<const float>)>& visit) {
  const dist::ParameterLayout& layout = arena_.layout();
  const std::vector<ParameterArena::StoredArray> stored = arena_.stored_arrays();
  const auto average = std::ranges::find(stored, std::string_view(ckpt::kAverageArray),
                                         &ParameterArena::StoredArray::name);
  if (average == stored.end() || !average->trained) return;
  const at::Tensor& averages = arrays_[static_cast<size_t>(average - stored.begin())];
  for (const dist::Bucket& bucket : layout.buckets()) {
    if (!bucket.frozen) continue;
    const auto range = layout.SliceOf(bucket, slice_);
    const auto count = static_cast<size_t>(range.count);
    visit({averages.mutable_data_ptr<float>() + range.slice_begin, count},
          {arrays_[0].const_data_ptr<float>() + range.slice_begin, count});  // main comes first
  }
}

namespace {

// Moves averages towards weights that stay, by one update after another, so the bits do not depend
// on the updates after which steps are saved. The factors never rise: an update that changes no
// average is followed by none that does.
void MoveTowards(std::span<const float> weights, std::span<const float> factors,
                 std::span<float> averages) {
  for (const float factor : factors) {
    bool moved = false;
    for (size_t i = 0; i < averages.size(); ++i) {
      const float next = averages[i] + factor * (weights[i] - averages[i]);
      moved |= next != averages[i];
      averages[i] = next;
    }
    if (!moved) return;
  }
}

}  // namespace

void HostSlices::WriteFrozenAverage(double ema_decay, uint64_t num_updates,
                                    FrozenAverage& average) {
  constexpr size_t kBlock = 4096;  // elements that stay in the cache over all updates
  std::vector<float> factors;
  for (uint64_t update = average.num_updates + 1; update <= num_updates; ++update)
    factors.push_back(1.0f - static_cast<float>(AverageDecay(ema_decay, update)));
  average.num_updates = num_updates;
  auto values = std::span(average.values);
  ForEachFrozenPart([&](std::span<float> out, std::span<const float> weights) {
    if (average.values.empty()) {
      std::ranges::copy(weights, out.begin());
      return;
    }
    for (size_t begin = 0; begin < out.size(); begin += kBlock) {
      const size_t count = std::min(kBlock, out.size() - begin);
      MoveTowards(weights.subspan(begin, count), factors, values.subspan(begin, count));
    }
    std::ranges::copy(values.first(out.size()), out.begin());
    values = values.subspan(out.size());
  });
}

std::vector<float> HostSlices::LoadedFrozenAverage() {
  std::vector<float> values;
  ForEachFrozenPart([&](std::span<float> average, std::span<const float>) {
    values.insert(values.end(), average.begin(), average.end());
  });
  return values;
}

void HostSlices::CopyFromArena() {
  ForEachPart([](at::Tensor host, const at::Tensor& in_arena) {
    if (in_arena.is_cuda()) {
      host.copy_(in_arena, /*non_blocking=*/true);
    } else {  // Does not use LibTorch's threads, which belong to the step.
      std::memcpy(host.mutable_data_ptr<float>(), in_arena.const_data_ptr<float>(), host.nbytes());
    }
  });
}

void HostSlices::CopyToArena() {
  ForEachPart([](const at::Tensor& host, at::Tensor in_arena) { in_arena.copy_(host); });
}

int64_t HostSlices::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& array : arrays_) bytes += static_cast<int64_t>(array.nbytes());
  return bytes;
}

}  // namespace halflife::train
