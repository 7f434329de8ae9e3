// The limits of the step sizes of Mamba-2 in config.json: a pair of numbers, such as
// `time_step_limit`.
#pragma once

#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>

#include "interop/layout.h"

namespace halflife::interop {

struct StepLimits {
  double least = 0, most = std::numeric_limits<double>::infinity();
  bool operator==(const StepLimits&) const = default;
};

// Returns the default if the key is absent or null.
StepLimits ReadStepLimits(ConfigReader& reader, const char* key);
// The options dt_limit_min and dt_limit_max of a mixer mamba2.
StepLimits StepLimitsOf(const model::MixerConfig& mamba2);
void SetStepLimits(const StepLimits& limits, model::MixerConfig& mamba2);

// Warns that other programs do not apply the limits to generated tokens, unless they are the
// default.
void WarnOfStepLimits(const StepLimits& limits);
// Writes the pair under each of the keys, with that warning. Limits are left out at their default,
// which each class knows.
void WriteStepLimits(const StepLimits& limits, std::initializer_list<const char*> keys,
                     nlohmann::ordered_json& json);

}  // namespace halflife::interop
