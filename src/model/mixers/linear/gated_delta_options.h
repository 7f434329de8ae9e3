// The options that Gated DeltaNet and Kimi Delta Attention share, and what follows from them.
#pragma once

#include <cstdint>
#include <vector>

#include "model/mixers/linear/linear_mixer.h"

namespace halflife::model {

struct GatedDeltaOptions : OptionsOf<GatedDeltaOptions> {
  int64_t num_heads = 4, num_v_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;                    // 0: model_dim / num_heads
  double expand_v = 1;                     // head dim of v, as a factor of head_dim
  bool use_short_conv = true;
  int64_t conv_size = 4;
  bool allow_neg_eigval = false;
  int64_t head_dim_v = 0;  // computed by Resolve

  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;

  LinearHeads heads() const { return {num_heads, num_heads, num_v_heads, head_dim, head_dim_v}; }
};

// A form with a short convolution, or without one but with its SiLU, and with an output norm called
// o_norm. The gate and the recurrence are left to the mixer.
LinearForm MakeGatedDeltaForm(const GatedDeltaOptions& options);

}  // namespace halflife::model
