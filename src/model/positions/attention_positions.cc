#include "model/positions/attention_positions.h"

#include "core/error.h"
#include "ops/rows/rotary.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {

const AttentionLayer& Rotating(const AttentionLayer& layer) {
  HL_CHECK_AS(ExitCode::kUsage, layer.rope_theta > 1 && layer.head_dim % 2 == 0,
              "rotary positions cannot be used with head_dim ", layer.head_dim, " and rope_theta ",
              layer.rope_theta, ". Use an even head_dim and a rope_theta above 1.");
  return layer;
}

void AttentionPositions::Encode(AttentionHeads&, const at::Tensor&, ops::RotaryTables&) const {}

at::Tensor AttentionPositions::Bias(int64_t, const at::TensorOptions&) const { return {}; }

bool AttentionPositions::counts_distances() const {
  return has_bias() || !decay_rates().empty() || far_from() > 0;
}

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& positions,
                  std::span<const double> frequencies, double factor) {
  return ops::ApplyRotary(
      x, ops::MakeRotaryTable(positions, frequencies, factor, ops::ComputeType(x)));
}

RotaryPositions::RotaryPositions(const AttentionLayer& layer)
    : RotaryPositions(ops::RotaryFrequencies(Rotating(layer).head_dim, layer.rope_theta)) {}

void RotaryPositions::Encode(AttentionHeads& heads, const at::Tensor& positions,
                             ops::RotaryTables& tables) const {
  const auto table = tables.Of(positions, frequencies_, factor_, ops::ComputeType(heads.q));
  const ops::RotatedPair rotated = ops::ApplyRotary(heads.q, heads.k, table);
  heads.q = rotated.q, heads.k = rotated.k;
}

}  // namespace halflife::model
