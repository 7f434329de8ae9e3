// The one small all-reduce of a step: everything that ranks must agree on, as a sum of doubles
// (small integers are exact in fp64, so sums of flags, counts and identities lose nothing).
//
//   StepScalars scalars;
//   scalars[Scalar::kLossSum] = loss;
//   scalars.Reduce(comm);   // throws CommError kDesync where ranks are at different steps
#pragma once

#include <array>
#include <cstdint>

#include "dist/communicator.h"

namespace halflife::train {

enum class Scalar : int {
  // The reduced gradient's sum of squares: every rank gives all of it, or W times its share, and
  // the sum is divided by W.
  kGradSquares,
  // Ranks that met a non-finite reduced gradient.
  kNonFiniteGrads,
  // The sum of rank + 1 over the ranks whose local loss is non-finite: it names the rank where the
  // count of them, which follows, is 1.
  kNonFiniteRankSum,
  kNonFiniteRanks,
  kLossSum,
  kNumTargets,
  kZLossSum,
  // Signals and limits, counted over ranks.
  kSaveAndRequeue,
  kSaveAndContinue,
  kSaveAndStop,
  kTimeLimit,
  // Ranks on which the save under way has ended.
  kEndedSaves,
  // Identities: their sum must be W times the own value.
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
