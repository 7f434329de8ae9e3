#include "interop/layouts/step_limits.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/log.h"

namespace halflife::interop {
namespace {

// Reads a number, or an infinity as transformers writes it, {"__float__": "Infinity"}.
std::optional<double> ReadStepLimit(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const auto tagged = value.is_object() ? value.find("__float__") : value.end();
  if (value.is_object() && tagged != value.end() && *tagged == "Infinity") return StepLimits().most;
  return std::nullopt;
}

nlohmann::ordered_json WrittenStepLimit(double limit) {
  if (std::isinf(limit)) return {{"__float__", "Infinity"}};
  return limit;
}

}  // namespace

StepLimits ReadStepLimits(ConfigReader& reader, const char* key) {
  const nlohmann::json* limits = reader.Member(key);
  if (limits == nullptr) return {};
  const bool is_pair = limits->is_array() && limits->size() == 2;
  const auto least = is_pair ? ReadStepLimit((*limits)[0]) : std::nullopt,
             most = is_pair ? ReadStepLimit((*limits)[1]) : std::nullopt;
  const bool valid = least.has_value() && most.has_value() && *least >= 0 && *least < *most;
  reader.Require(
      valid, key, " is ",
      limits->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 80),
      ". Only two numbers in ascending order, from 0, are supported.");
  return valid ? StepLimits{*least, *most} : StepLimits{};
}

StepLimits StepLimitsOf(const model::MixerConfig& mamba2) {
  return {mamba2.Get<double>("dt_limit_min"), mamba2.Get<double>("dt_limit_max")};
}

void SetStepLimits(const StepLimits& limits, model::MixerConfig& mamba2) {
  mamba2.Set("dt_limit_min", limits.least);
  mamba2.Set("dt_limit_max", limits.most);
}

void WarnOfStepLimits(const StepLimits& limits) {
  if (limits == StepLimits{}) return;
  HL_WARN("interop", "export: dt_limit_min is ", limits.least, " and dt_limit_max is ", limits.most,
          ". transformers, mamba_ssm and inference engines do not apply these limits ",
          "to generated tokens. Use halflife to generate, or train without limits.");
}

void WriteStepLimits(const StepLimits& limits, std::initializer_list<const char*> keys,
                     nlohmann::ordered_json& json) {
  if (limits == StepLimits{}) return;
  WarnOfStepLimits(limits);
  for (const char* key : keys)
    json[key] = {WrittenStepLimit(limits.least), WrittenStepLimit(limits.most)};
}

}  // namespace halflife::interop
