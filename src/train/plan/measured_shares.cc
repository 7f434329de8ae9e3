#include "train/plan/measured_shares.h"

#include <map>

namespace halflife::train {

std::optional<double> MeasuredMixingShare(std::string_view mixer) {
  static const std::map<std::string_view, double> kShares = {{"gla", 0.03},
                                                             {"mamba", 0.0026},
                                                             {"rebased", 0.0073},
                                                             {"retention", 0.061},
                                                             {"softmax", 0.165}};
  const auto found = kShares.find(mixer);
  return found == kShares.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace halflife::train
