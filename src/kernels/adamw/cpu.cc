#include <algorithm>
#include <vector>

#include "kernels/adamw/element.h"
#include "kernels/cpu/vectorised.h"

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

// Blocks start with their segment, so that an element's place in the vector loop, and with it the
// last bit of its result, does not depend on where the segment lies.
constexpr int64_t kBlock = 1 << 14;

struct Block {
  int64_t begin, end;
  const AdamWSegment* segment;
};

HL_INLINE void UpdateBlock(const AdamWArgs& args, const Block& block) {
  const AdamWFactors f = args.factors;
  const float weight_decay = block.segment->weight_decay;
  const float* __restrict grads = args.grads;
  float* __restrict main = args.main, * __restrict m = args.m, * __restrict v = args.v;
#pragma omp simd
  for (int64_t i = block.begin; i < block.end; ++i)
    main[i] = AdamWElement(f, weight_decay, grads[i], main[i], m[i], v[i]);
}

HL_INLINE void RoundBlock(const AdamWArgs& args, const Block& block) {
  const float* __restrict main = args.main;
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
