#include <algorithm>
#include <cmath>

#include "kernels/rows/decay_growth_args.h"

namespace halflife::kernels::cpu {
namespace {

// Returns the largest element, at least 0; NaN if an element is NaN.
float Largest(const float* x, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i)
    if (!(x[i] <= largest) && !std::isnan(largest)) largest = x[i];
  return largest;
}

void Lower(const DecayGrowthArgs& args, double* growth) {
  for (int64_t head = 0; head < args.decay_heads; ++head) {
    const float* const x = args.log_decay + head * args.width;
    float* const y = args.lowered + head * args.width;
    const float largest = Largest(x, args.width);
    for (int64_t i = 0; i < args.width; ++i) y[i] = x[i] - largest;
  }
  for (int64_t head = 0; head < args.heads; ++head)
    growth[head] =
        Largest(args.log_decay + head * args.decay_heads / args.heads * args.width, args.width);
}

void FinalScales(const DecayGrowthArgs& args, const double* growth) {
  for (int64_t n = 0; n < args.sequences; ++n) {
    const int64_t last = args.last[n];
    const bool any = last < args.num_tokens();
    const auto steps = static_cast<double>(any ? last % args.seq_len - args.begin[last] : 0);
    for (int64_t head = 0; head < args.heads; ++head)
      args.final_log_scale[n * args.heads + head] = any ? steps * growth[head] : 0;
  }
}

}  // namespace

// Runs may begin at any token, but the distance to a run's begin is less than the row length. So
// seq_len exponentials per head serve all rows.
void DecayGrowth(const DecayGrowthArgs& args, double* growth, float* factors) {
  Lower(args, growth);
  FinalScales(args, growth);
  for (int64_t steps = 0; steps < args.seq_len; ++steps)
    for (int64_t head = 0; head < args.heads; ++head)
      factors[steps * args.heads + head] =
          static_cast<float>(std::exp(-static_cast<double>(steps) * growth[head]));
  for (int64_t token = 0; token < args.num_tokens(); ++token) {
    const int64_t steps = token % args.seq_len - args.begin[token];
    std::copy_n(factors + steps * args.heads, args.heads, args.key_factor + token * args.heads);
  }
}

}  // namespace halflife::kernels::cpu
