#include "train/step/adamw.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <vector>

#include "ops/torch/host_transfer.h"
#include "ops/torch/host_waits.h"
#include "ops/torch/tensor_ref.h"

namespace halflife::train {

AdamW::AdamW(ParameterArena& arena, const AdamWConfig& config, bool decay_all)
    : arena_(arena), config_(config) {
  std::vector<kernels::AdamWSegment> segments;
  const dist::ParameterLayout& layout = arena_.layout();
  for (const dist::Fragment& part : arena_.updated_fragments()) {
    const dist::ParamSpec& spec = layout.specs()[part.param];
    const int64_t begin = part.arena_begin, count = part.end - part.begin;
    const auto shift = [&](int64_t sliced_end) { return layout.PlaceOf(part, sliced_end) - begin; };
    segments.push_back({.begin = begin,
                        .end = begin + count,
                        .weight_decay = decay_all || spec.weight_decay
                                            ? static_cast<float>(config_.weight_decay)
                                            : 0.0f,
                        .has_copy = spec.region == dist::Region::kCompute ? 1 : 0,
                        .main_shift = shift(arena_.main_sliced_end()),
                        .grads_shift = shift(arena_.grads_sliced_end()),
                        .moments_shift = shift(arena_.moments_sliced_end())});
    max_segment_ = std::max(max_segment_, count);
  }
  num_segments_ = static_cast<int>(segments.size());
  segments_ = ops::UploadTable(segments, arena_.main().device());
}

void AdamW::Update(double lr, double grad_factor, uint64_t num_updates) {
  ops::NoteKernel();
  const c10::DeviceGuard guard(arena_.main().device());
  const at::Tensor& copy = arena_.compute_copy();
  const kernels::AdamWArgs args = {
      .main = arena_.main().mutable_data_ptr<float>(),
      .grads = arena_.grads().const_data_ptr<float>(),
      .m = arena_.adam_m().mutable_data_ptr<float>(),
      .v = arena_.adam_v().mutable_data_ptr<float>(),
      .copy = copy.defined() ? static_cast<uint16_t*>(copy.mutable_data_ptr()) : nullptr,
      .segments = static_cast<const kernels::AdamWSegment*>(segments_.const_data_ptr()),
      .num_segments = num_segments_,
      .max_segment = max_segment_,
      .factors = kernels::MakeAdamWFactors(config_, lr, grad_factor, num_updates)};
#ifdef HALFLIFE_WITH_CUDA
  if (arena_.main().is_cuda()) {
    kernels::cuda::AdamW(args,
                         ops::CurrentStream({Device::Kind::kCuda, arena_.main().get_device()}));
    return;
  }
#endif
  kernels::cpu::AdamW(args);
}

}  // namespace halflife::train
