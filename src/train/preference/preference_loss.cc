#include "train/preference/preference_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>

namespace halflife::train {

PairLosses ComparePairs(const PreferenceConfig& config, const PairScores& scores,
                        const at::Tensor& lengths) {
  const at::Tensor exists = lengths.gt(0).to(at::kDouble);
  const at::Tensor per_token =
      config.loss == "ipo" ? exists / lengths.clamp_min(1) : exists;  // factor of the sums
  const at::Tensor log_ratio = (scores.reference - scores.policy) * per_token;
  const at::Tensor difference = log_ratio.select(2, 0) - log_ratio.select(2, 1);
  at::Tensor loss, slope;  // slope: the derivative by `difference`
  if (config.loss == "ipo") {
    const at::Tensor rest = difference - 1 / (2 * config.beta);
    loss = rest.square();
    slope = rest * 2;
  } else {
    const at::Tensor logit = difference * config.beta;
    loss = at::softplus(-logit);
    slope = at::sigmoid(-logit) * -config.beta;
  }
  return {.loss = loss * exists.select(2, 0),
          .rewards = log_ratio * config.beta,
          .weights = at::stack({-slope, slope}, 2) * per_token};
}

at::Tensor SumPairs(const PairLosses& pairs) {
  const at::Tensor chosen = pairs.rewards.select(2, 0), rejected = pairs.rewards.select(2, 1);
  return at::stack(
      {pairs.loss.sum(), chosen.sum(), rejected.sum(), chosen.gt(rejected).sum().to(at::kDouble)});
}

}  // namespace halflife::train
