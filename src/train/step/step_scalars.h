// The small all-reduce of a step: everything that ranks must agree on, as a sum of doubles. Small
// integers are exact in fp64, so sums of flags, counts and identities are exact.
#pragma once

#include <array>
#include <cstdint>

#include "dist/communicator.h"

namespace halflife::train {

enum class Scalar : int {
  // The sum of squares of the reduced gradient. Every rank adds all of it, or W times its share,
  // and the sum is divided by W.
  kGradSquares,
  // Number of ranks with a non-finite reduced gradient.
  kNonFiniteGrads,
  // The sum of rank + 1 over the ranks whose local loss is not finite. It identifies the rank if
  // their count, which follows, is 1.
  kNonFiniteRankSum,
  kNonFiniteRanks,
  kLossSum,
  kNumTargets,
  kZLossSum,
  // Sums over pairs, with train.preference: PairLosses::rewards of chosen and of rejected answers,
  // and the number of pairs whose chosen answer has the larger one.
  kChosenRewardSum,
  kRejectedRewardSum,
  kNumPreferred,
  // Signals and limits, counted over ranks.
  kSaveAndRequeue,
  kSaveAndContinue,
  kSaveAndStop,
  kTimeLimit,
  // Number of ranks whose part of the running save has ended.
  kEndedSaves,
  // Identities: the sum must be W times the rank's own value.
  kStep,
  kConfigHash,
  kCount
};

class StepScalars {
 public:
  double& operator[](Scalar index) { return values_[static_cast<int>(index)]; }
  double operator[](Scalar index) const { return values_[static_cast<int>(index)]; }
  bool any(Scalar index) const { return (*this)[index] > 0; }
  void Reduce(dist::Communicator& comm);

 private:
  std::array<double, static_cast<size_t>(Scalar::kCount)> values_{};
};

}  // namespace halflife::train
