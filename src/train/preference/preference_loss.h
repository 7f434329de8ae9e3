// The loss of pairs of answers to a prompt, of which one is preferred (chosen) to the other
// (rejected), compared with a reference model that is not trained:
//
//   h = (ln pi(chosen) - ln ref(chosen)) - (ln pi(rejected) - ln ref(rejected))
//   dpo: -ln sigmoid(beta h)          (Rafailov et al. 2023, equation 7)
//   ipo: (h - 1 / (2 beta))^2         (Azar et al. 2023, equation 17)
//
// With dpo, ln pi(answer) is the sum over the tokens of the answer. With ipo, it is their mean, as
// in TRL and by the advice of the authors.
//
// Legend: B rows, P pairs per row; the last dimension of size 2 has chosen and rejected.
#pragma once

#include <ATen/core/Tensor.h>

#include "train/config/run_config.h"

namespace halflife::train {

// Sums of -ln p over the tokens of answers, [B, P, 2] fp64.
struct PairScores {
  at::Tensor policy, reference;
};

struct PairLosses {
  at::Tensor loss;     // [B, P]
  at::Tensor rewards;  // [B, P, 2]: beta (ln pi - ln ref), the implicit reward of an answer
  // [B, P, 2]: the derivative of the loss by PairScores::policy, which is the weight of the loss of
  // each token of the answer.
  at::Tensor weights;
};

// `lengths` [B, P, 2] fp64 are the numbers of tokens of the answers; 0 for a pair that does not
// exist, whose results are 0.
PairLosses ComparePairs(const PreferenceConfig& config, const PairScores& scores,
                        const at::Tensor& lengths);

// [4] fp64: the sums over pairs of the loss, the rewards of chosen and rejected answers, and the
// number of pairs whose chosen answer has the larger reward.
at::Tensor SumPairs(const PairLosses& pairs);

}  // namespace halflife::train
