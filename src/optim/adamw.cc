#include "optim/adamw.h"

#include <algorithm>

#include "optim/optimizer_choice.h"

namespace halflife::optim {

std::string AdamW::Prepare(const std::vector<Range>& ranges) {
  std::vector<kernels::AdamWSegment> segments;
  for (const Range& range : ranges) {
    segments.push_back({.begin = range.begin,
                        .end = range.end,
                        .weight_decay = range.weight_decay,
                        .has_copy = range.has_copy ? 1 : 0,
                        .main_shift = range.main_shift,
                        .grads_shift = range.grads_shift,
                        .moments_shift = range.state_shift,
                        .lr_scale = range.lr_scale});
    max_segment_ = std::max(max_segment_, range.end - range.begin);
  }
  num_segments_ = static_cast<int>(segments.size());
  return {reinterpret_cast<const char*>(segments.data()),
          segments.size() * sizeof(kernels::AdamWSegment)};
}

void AdamW::Update(const UpdateArgs& args) {
  const kernels::AdamWArgs call = {
      .main = args.main,
      .grads = args.grads,
      .m = args.states[0],
      .v = args.states[1],
      .copy = args.copy,
      .segments = static_cast<const kernels::AdamWSegment*>(args.table),
      .num_segments = num_segments_,
      .max_segment = max_segment_,
      .factors = kernels::MakeAdamWFactors(config_, args.lr, args.grad_factor, args.num_updates)};
#ifdef HALFLIFE_WITH_CUDA
  if (args.device.is_cuda()) {
    kernels::cuda::AdamW(call, args.stream);
    return;
  }
#endif
  kernels::cpu::AdamW(call);
}

namespace {

// AdamWConfig, which every optimizer gets, has all of its settings.
struct NoOwnConfig : ConfigOf<NoOwnConfig> {};

struct ChosenAdamW : AdamW {
  ChosenAdamW(const NoOwnConfig&, const AdamWConfig& config) : AdamW(config) {}
};

}  // namespace

OptimizerKind AdamWKind() { return KindOf<NoOwnConfig, ChosenAdamW>("adamw"); }

}  // namespace halflife::optim
