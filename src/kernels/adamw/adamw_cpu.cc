#include <algorithm>
#include <vector>

#include "kernels/adamw/adamw_args.h"
#include "kernels/common/cpu/vectorised.h"

namespace halflife::kernels {

AdamWFactors MakeAdamWFactors(const AdamWConfig& config, double lr, double grad_factor,
                              uint64_t num_updates) {
  const auto t = static_cast<double>(num_updates);
  return {.grad_factor = static_cast<float>(grad_factor),
          .beta1 = static_cast<float>(config.beta1),
          .one_minus_beta1 = static_cast<float>(1 - config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .one_minus_beta2 = static_cast<float>(1 - config.beta2),
          .lr = static_cast<float>(lr),
          .step_size = static_cast<float>(lr / (1 - std::pow(config.beta1, t))),
          .denom_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(config.beta2, t))),
          .eps = static_cast<float>(config.eps)};
}

namespace cpu {
namespace {

constexpr int64_t kBlock = 1 << 14;
// Elements that are updated together. A block's last ones are computed as a full group, too: the
// last bit of a result must not depend on where a rank's slice cuts its parameter.
constexpr int64_t kGroup = 16;

struct Block {
  int64_t begin, end;
  const AdamWSegment* segment;
};

HL_INLINE void UpdateGroups(const AdamWFactors& f, float weight_decay, int64_t num_groups,
                            const float* __restrict grads, float* __restrict main,
                            float* __restrict m, float* __restrict v) {
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t first = group * kGroup;
#pragma omp simd
    for (int64_t i = first; i < first + kGroup; ++i)
      main[i] = AdamWElement(f, weight_decay, grads[i], main[i], m[i], v[i]);
  }
}

HL_INLINE void UpdateBlock(const AdamWArgs& args, const Block& block) {
  const AdamWFactors f = FactorsOf(args.factors, *block.segment);
  const float weight_decay = block.segment->weight_decay;
  const AdamWSegment& segment = *block.segment;
  const float* grads = args.grads + (block.begin + segment.grads_shift);
  const int64_t moments = block.begin + segment.moments_shift;
  float* const arrays[] = {args.main + (block.begin + segment.main_shift), args.m + moments,
                           args.v + moments};
  const int64_t count = block.end - block.begin, whole = count / kGroup * kGroup;
  UpdateGroups(f, weight_decay, whole / kGroup, grads, arrays[0], arrays[1], arrays[2]);
  if (whole == count) return;
  float rest[4][kGroup] = {};
  std::copy(grads + whole, grads + count, rest[3]);
  for (int i = 0; i < 3; ++i) std::copy(arrays[i] + whole, arrays[i] + count, rest[i]);
  UpdateGroups(f, weight_decay, 1, rest[3], rest[0], rest[1], rest[2]);
  for (int i = 0; i < 3; ++i) std::copy(rest[i], rest[i] + (count - whole), arrays[i] + whole);
}

HL_INLINE void RoundBlock(const AdamWArgs& args, const Block& block) {
  const float* __restrict main = args.main + block.segment->main_shift;
  uint16_t* __restrict copy = args.copy;
#pragma omp simd
  for (int64_t i = block.begin; i < block.end; ++i) copy[i] = Narrow<Bf16>(main[i]).bits;
}

}  // namespace

void AdamW(const AdamWArgs& args) {
  std::vector<Block> blocks;
  for (int i = 0; i < args.num_segments; ++i) {
    const AdamWSegment& segment = args.segments[i];
    for (int64_t begin = segment.begin; begin < segment.end; begin += kBlock)
      blocks.push_back({begin, std::min(segment.end, begin + kBlock), &segment});
  }
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    RunVectorised([&]() HL_LAMBDA_INLINE { UpdateBlock(args, block); });
    if (args.copy != nullptr && block.segment->has_copy != 0)
      RunVectorised([&]() HL_LAMBDA_INLINE { RoundBlock(args, block); });
  }
}

}  // namespace cpu
}  // namespace halflife::kernels
