// The frequencies of the rotary variants for texts that are longer than those of training: position
// interpolation, NTK-aware bases, YaRN and the scaling of Llama 3.
//
//   const std::vector<double> slow = InterpolatedFrequencies(64, 10000, /*factor=*/4);
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::model {

// All functions return [dim / 2] frequencies in radians per token (an odd dim is rounded up).
// `factor` is the length of the longest text divided by the training length.
// Position interpolation (Chen et al., 2023): divides every position by `factor`.
std::vector<double> InterpolatedFrequencies(int64_t dim, double base, double factor);
// Returns NTK-aware frequencies, with the base base * factor^(dim / (dim - 2)). The slowest pair is
// interpolated, the fastest is unchanged.
std::vector<double> NtkAwareFrequencies(int64_t dim, double base, double factor);

// YaRN (Peng et al., 2023). Pairs with more than `fast` turns over the training length are
// unchanged. Pairs with fewer than `slow` turns are interpolated. A linear ramp connects them.
struct YarnConfig {
  double factor = 1;
  int64_t length = 0;  // Training length in tokens.
  double fast = 32, slow = 1;
  bool truncate = true;  // The ramp begins and ends at whole pairs.
};
struct YarnRamp {
  double first, last;  // First and last pair of the ramp.
};
YarnRamp YarnRampOf(int64_t dim, double base, const YarnConfig& config);
std::vector<double> YarnFrequencies(int64_t dim, double base, const YarnConfig& config);
// Returns the factor of cos and sin, 0.1 ln factor + 1. Its square acts as a temperature of the
// scores.
double YarnFactor(double factor);

// Llama 3.1 (Dubey et al., 2024). Pairs with more than `fast` turns over the training length are
// unchanged. Pairs with fewer than `slow` turns are interpolated. In between, the frequency is a
// mean of both, weighted linearly by the number of turns.
struct Llama3Config {
  double factor = 1;
  int64_t length = 0;  // Training length in tokens.
  double fast = 4, slow = 1;
};
std::vector<double> Llama3Frequencies(int64_t dim, double base, const Llama3Config& config);

}  // namespace halflife::model
