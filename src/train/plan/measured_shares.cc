#include "train/plan/measured_shares.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

namespace halflife::train {
namespace {

// Decay attention on an H100: `ns` are those of a token and head, forward and backward.
struct MeasuredKernel {
  double state_elements = 0;  // K V of a head
  double ns = 0;
};
constexpr MeasuredKernel kPerHead[] = {{64 * 64, 1.173}, {128 * 128, 2.914}, {128 * 256, 6.325}};
constexpr MeasuredKernel kPerToken[] = {{64 * 64, 1.450}, {128 * 128, 3.435}, {128 * 256, 7.095}};
constexpr MeasuredKernel kPerChannel[] = {{64 * 64, 3.277}, {128 * 128, 8.360}, {128 * 256, 11.70}};
constexpr double kPeakOfThem = 989e12;
// model::FlopCount::mixing of a token, head and element of its state, in forward and backward.
constexpr double kFlopsPerElement = 12;

struct Family {
  std::span<const MeasuredKernel> kernels;
  // The share in a measured step, relative to that of the kernel in a benchmark of its own.
  double in_step;
};
constexpr Family kHeads = {kPerHead, 0.97}, kTokens = {kPerToken, 0.97},
                 kChannels = {kPerChannel, 0.88};

double ShareOf(const MeasuredKernel& kernel) {
  return kFlopsPerElement * kernel.state_elements / (kernel.ns * 1e-9) / kPeakOfThem;
}

double ShareOf(const Family& family, double state_elements) {
  const auto above = std::ranges::find_if(family.kernels, [&](const MeasuredKernel& kernel) {
    return kernel.state_elements >= state_elements;
  });
  if (above == family.kernels.end()) return family.in_step * ShareOf(family.kernels.back());
  if (above == family.kernels.begin()) return family.in_step * ShareOf(*above);
  const MeasuredKernel& below = *std::prev(above);
  const double part = std::log(state_elements / below.state_elements) /
                      std::log(above->state_elements / below.state_elements);
  return family.in_step * std::pow(ShareOf(below), 1 - part) * std::pow(ShareOf(*above), part);
}

}  // namespace

std::optional<double> MeasuredMixingShare(std::string_view mixer, int64_t state_elements) {
  static const std::map<std::string_view, Family> kFamilies = {
      {"gla", kChannels},  {"hgrn2", kChannels},  {"lightning", kHeads},
      {"mamba2", kTokens}, {"retention", kHeads}, {"retnet", kHeads}};
  static const std::map<std::string_view, double> kShares = {
      {"mamba", 0.0026}, {"rebased", 0.0073}, {"softmax", 0.165}};
  if (const auto family = kFamilies.find(mixer); family != kFamilies.end() && state_elements > 0)
    return ShareOf(family->second, static_cast<double>(state_elements));
  const auto found = kShares.find(mixer);
  return found == kShares.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace halflife::train
