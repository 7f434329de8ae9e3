// ALiBi (Press et al., 2022): the score decreases by slope_h per token of distance. In encoders
// this applies to later keys as well as to earlier ones. Nothing is rotated or learned. Setting
// slope_scale to the training length divided by the text length interpolates positions (Al-Khateeb
// et al., 2023).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <cmath>

#include "model/positions/alibi.h"
#include "model/positions/attention_variant.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {
namespace {

struct AlibiOptions : OptionsOf<AlibiOptions> {
  double slope_scale = 1;  // Factor of all slopes. 0: scores do not depend on distance.
  std::vector<Option> Fields() override { return {{"slope_scale", &slope_scale}}; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(slope_scale >= 0 && std::isfinite(slope_scale), "option slope_scale is ",
                     slope_scale,
                     ". Use a number from 0 on, so that scores decrease with the distance.");
  }
};

class Alibi : public AttentionPositions {
 public:
  Alibi(const AlibiOptions& options, const AttentionLayer& layer)
      : slopes_(AlibiSlopes(layer.num_heads)) {
    for (double& slope : slopes_) slope *= options.slope_scale;
  }
  bool has_bias() const override { return true; }
  bool looks_ahead() const override { return true; }
  at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const override {
    const at::Tensor slopes =
        ops::ConstantsOn(options.device(), slopes_, c10::typeMetaToScalarType(options.dtype()))
            .unsqueeze(1);
    return -slopes * at::arange(num_distances, options);
  }

 private:
  std::vector<double> slopes_;
};

}  // namespace

std::vector<double> AlibiSlopes(int64_t num_heads) {
  int64_t power = 1;
  while (2 * power <= num_heads) power *= 2;
  const auto slope = [](int64_t head, int64_t heads) {
    return std::exp2(-8.0 * static_cast<double>(head + 1) / static_cast<double>(heads));
  };
  std::vector<double> slopes;
  for (int64_t head = 0; head < power; ++head) slopes.push_back(slope(head, power));
  for (int64_t head = 0; head < num_heads - power; ++head)
    slopes.push_back(slope(2 * head, 2 * power));
  return slopes;
}

PositionsVariant AlibiPositionsVariant() {
  return AttentionVariantOf<AlibiOptions, Alibi>("alibi");
}

}  // namespace halflife::model
