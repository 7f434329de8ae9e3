#include "model/positions/frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/rows/rotary.h"

namespace halflife::model {
namespace {

double Usual(int64_t pair, int64_t dim, double base) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
}

}  // namespace

std::vector<double> InterpolatedFrequencies(int64_t dim, double base, double stretch) {
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < dim / 2; ++pair)
    frequencies.push_back(Usual(pair, dim, base) / stretch);
  return frequencies;
}

std::vector<double> NtkAwareFrequencies(int64_t dim, double base, double stretch) {
  const auto width = static_cast<double>(dim);
  return ops::RotaryFrequencies(dim,
                                dim > 2 ? base * std::pow(stretch, width / (width - 2)) : base);
}

YarnRamp YarnRampOf(int64_t dim, double base, const YarnConfig& config) {
  const auto width = static_cast<double>(dim);
  // The pair that makes this number of turns over the training length.
  const auto pair_of = [&](double turns) {
    return width * std::log(static_cast<double>(config.length) / (2 * std::numbers::pi * turns)) /
           (2 * std::log(base));
  };
  return {.first = std::max(0.0, std::floor(pair_of(config.fast))),
          .last = std::min(width - 1, std::ceil(pair_of(config.slow)))};
}

std::vector<double> YarnFrequencies(int64_t dim, double base, const YarnConfig& config) {
  const YarnRamp ramp = YarnRampOf(dim, base, config);
  // The minimum replaces an empty ramp.
  const double width = std::max(ramp.last - ramp.first, 0.001);
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < dim / 2; ++pair) {
    const double kept = 1 - std::clamp((static_cast<double>(pair) - ramp.first) / width, 0.0, 1.0);
    const double usual = Usual(pair, dim, base);
    frequencies.push_back(kept * usual + (1 - kept) * usual / config.stretch);
  }
  return frequencies;
}

double YarnFactor(double stretch) { return 0.1 * std::log(stretch) + 1; }

}  // namespace halflife::model
