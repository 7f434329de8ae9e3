// Frequencies of rotary pairs for texts longer than those of training: position interpolation,
// NTK-aware bases and YaRN.
//
//   const std::vector<double> slow = InterpolatedFrequencies(64, 10000, /*stretch=*/4);
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::model {

// All [dim / 2], radians a token. `stretch` is the longest text over that of training.
// Chen et al., 2023: every position divided by stretch.
std::vector<double> InterpolatedFrequencies(int64_t dim, double base, double stretch);
// A base of base stretch^(dim / (dim - 2)): the slowest pair is interpolated, the fastest is not.
std::vector<double> NtkAwareFrequencies(int64_t dim, double base, double stretch);

// Peng et al., 2023: pairs that turn more than `fast` times over the training length stay, those
// that turn less than `slow` times are interpolated, and there is a ramp over the pairs between.
struct YarnConfig {
  double stretch = 1;
  int64_t length = 0;  // of training
  double fast = 32, slow = 1;
};
struct YarnRamp {
  double first, last;  // of the pairs between
};
YarnRamp YarnRampOf(int64_t dim, double base, const YarnConfig& config);
std::vector<double> YarnFrequencies(int64_t dim, double base, const YarnConfig& config);
// The factor of cos and sin: 0.1 ln stretch + 1, whose square is a temperature of the scores.
double YarnFactor(double stretch);

}  // namespace halflife::model
