#include "train/loop/host_slices.h"

#include <ATen/ops/zeros.h>

#include <cstring>

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
      const bool missing = stored[i].trained && bucket.frozen;
      // The average of weights that do not change is the weights. Other states
      // stay zero.
      if (missing && stored[i].name != ckpt::kAverageArray) continue;
      const ParameterArena::StoredArray& from = missing ? stored[0] : stored[i];
      const int64_t place =
          from.trained
              ? layout.PlaceOf(range.arena_begin, arena_.states_division())
              : layout.PlaceOf({.arena_begin = range.arena_begin, .slice_begin = range.slice_begin},
                               from.sliced_end);
      copy(host, from.tensor->narrow(0, place, range.count), missing);
    }
  }
}

void HostSlices::CopyFromArena() {
  ForEachPart([](at::Tensor host, const at::Tensor& in_arena, bool) {
    if (in_arena.is_cuda()) {
      host.copy_(in_arena, /*non_blocking=*/true);
    } else {  // Does not use LibTorch's threads, which belong to the step.
      std::memcpy(host.mutable_data_ptr<float>(), in_arena.const_data_ptr<float>(), host.nbytes());
    }
  });
}

void HostSlices::CopyToArena() {
  ForEachPart([](const at::Tensor& host, at::Tensor in_arena, bool missing) {
    if (!missing) in_arena.copy_(host);
  });
}

int64_t HostSlices::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& array : arrays_) bytes += static_cast<int64_t>(array.nbytes());
  return bytes;
}

}  // namespace halflife::train
