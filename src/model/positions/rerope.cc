// ReRoPE (Su, 2023): distances of `window` or more count as `window`. In Leaky ReRoPE they count as
// window + (distance - window) / leak. Such pairs use a separate query and key. The key is rotated
// by its position divided by leak (or not rotated without leak), and the query by the remaining
// angle.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>

#include "model/positions/attention_variant.h"
#include "model/positions/frequencies.h"

namespace halflife::model {
namespace {

struct ReropeOptions : OptionsOf<ReropeOptions> {
  int64_t window = 512, leak = 0;  // leak 0: no leak.
  std::vector<Option> Fields() override {
    return {{"window", &window}, {"leak", &leak, {.min = 0}}};
  }
};

class Rerope : public RotaryPositions {
 public:
  Rerope(const ReropeOptions& options, const AttentionLayer& layer)
      : RotaryPositions(layer), options_(options) {
    if (options.leak > 0)
      leaking_ = InterpolatedFrequencies(layer.head_dim, layer.rope_theta,
                                         static_cast<double>(options.leak));
  }
  void Encode(AttentionHeads& heads, const at::Tensor& positions,
              ops::RotaryTables& tables) const override {
    if (options_.leak == 0) {
      heads.far_q = Rotate(heads.q, at::full_like(positions, options_.window), frequencies());
      heads.far_k = heads.k;
    } else {
      // (i + (leak - 1) window) / leak - j / leak = window + (i - j - window) / leak
      const int64_t shift = (options_.leak - 1) * options_.window;
      heads.far_q = Rotate(heads.q, positions + shift, leaking_);
      heads.far_k = Rotate(heads.k, positions, leaking_);
    }
    RotaryPositions::Encode(heads, positions, tables);
  }
  int64_t far_from() const override { return options_.window; }
  bool has_far_keys() const override { return true; }

 private:
  ReropeOptions options_;
  std::vector<double> leaking_;
};

}  // namespace

PositionsVariant ReropePositionsVariant() {
  return AttentionVariantOf<ReropeOptions, Rerope>("rerope");
}

}  // namespace halflife::model
