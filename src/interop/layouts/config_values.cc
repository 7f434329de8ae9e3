// Values of config.json that several classes write in the same form: the names of activations,
// lists with one name per layer, and the limits of Mamba-2's step sizes.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "core/error.h"
#include "core/log.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// halflife's name of an activation, and the name that is written. The names in `also` are accepted
// on import.
struct Activation {
  const char* ours;
  const char* theirs;
  std::array<const char*, 4> also;
};
// The names in `transformers`.
constexpr Activation kOfTransformers[] = {
    {"relu", "relu", {}},
    {"relu2", "relu2", {}},
    {"relu6", "relu6", {}},
    {"leaky_relu", "leaky_relu", {}},
    {"silu", "silu", {"swish"}},
    {"sigmoid", "sigmoid", {}},
    {"tanh", "tanh", {}},
    {"gelu", "gelu", {"gelu_python"}},
    {"gelu_tanh",
     "gelu_pytorch_tanh",
     {"gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"}},
    {"quick_gelu", "quick_gelu", {}},
    {"mish", "mish", {}},
    {"none", "linear", {}},
};
// fla's names. Its gelu is the tanh approximation; it has no exact gelu.
constexpr Activation kOfFla[] = {
    {"relu", "relu", {}},       {"relu2", "sqrelu", {}},   {"silu", "silu", {"swish"}},
    {"sigmoid", "sigmoid", {}}, {"gelu_tanh", "gelu", {}},
};

constexpr Activation kOfTorchscale[] = {
    {"relu", "relu", {}}, {"gelu", "gelu", {}}, {"silu", "swish", {}}};

std::span<const Activation> TableOf(ActivationNames names) {
  if (names == ActivationNames::kTorchscale) return kOfTorchscale;
  if (names == ActivationNames::kFla) return kOfFla;
  return kOfTransformers;
}

}  // namespace

std::string ReadActivation(ConfigReader& reader, const std::string& key, const std::string& absent,
                           ActivationNames names) {
  const std::string name = reader.String(key, absent);
  for (const Activation& activation : TableOf(names)) {
    if (name == activation.theirs) return activation.ours;
    for (const char* other : activation.also)
      if (other != nullptr && name == other) return activation.ours;
  }
  const auto theirs = [](const Activation& activation) { return activation.theirs; };
  reader.Require(false, key, " is '", name,
                 "'. Only null and these names are supported: ", Join(TableOf(names), ", ", theirs),
                 ".");
  return "none";
}

void RequireSwish(ConfigReader& reader, const std::string& spelling) {
  const std::string name = reader.String("hidden_act", spelling);
  reader.Require(name == "swish" || name == "silu", "hidden_act is '", name, "'. Only ", spelling,
                 " is supported.");
}

std::string WrittenActivation(const std::string& ours, ActivationNames names) {
  for (const Activation& activation : TableOf(names))
    if (ours == activation.ours) return activation.theirs;
  HL_FAIL(ExitCode::kInternal, "no activation name of ",
          names == ActivationNames::kFla ? "fla" : "transformers", " for the activation '", ours,
          "'");
}

std::vector<std::string> NamedActivations(ActivationNames names) {
  std::vector<std::string> ours;
  for (const Activation& activation : TableOf(names)) ours.emplace_back(activation.ours);
  return ours;
}

std::optional<std::vector<int64_t>> ReadLayersOfType(ConfigReader& reader, const std::string& key,
                                                     int64_t num_layers, const LayerTypes& types) {
  const nlohmann::json* list = reader.Member(key);
  if (list == nullptr) return std::nullopt;
  const bool fits = list->is_array() && static_cast<int64_t>(list->size()) == num_layers;
  reader.Require(fits, key, " is not a list with one name for each of the ", num_layers,
                 " layers. Correct the list, or remove the key.");
  if (!fits) return std::nullopt;
  // transformers still reads the old names of two types, in every class.
  const auto new_name = [](const nlohmann::json& name) -> nlohmann::json {
    return name == "attention" ? "full_attention" : name == "mamba" ? "linear_attention" : name;
  };
  const auto is_in = [&](const nlohmann::json& name, const std::vector<const char*>& names) {
    return std::ranges::any_of(
        names, [&](const char* own) { return name == own || new_name(name) == own; });
  };
  std::vector<int64_t> found;
  for (size_t layer = 0; layer < list->size(); ++layer) {
    const nlohmann::json& name = (*list)[layer];
    const bool wanted = is_in(name, types.wanted);
    reader.Require(wanted || is_in(name, types.other), key, " has ", name.dump().substr(0, 40),
                   " for layer ", layer, ". Use a model that has only ", types.other.front(),
                   " and ", types.wanted.front(), ".");
    if (wanted) found.push_back(static_cast<int64_t>(layer));
  }
  return found;
}

LayerParameter ParseLayerParameter(const std::string& parameter) {
  constexpr std::string_view kLayers = "layers.", kMixer = ".attn.";
  LayerParameter parsed;
  if (!parameter.starts_with(kLayers)) return parsed;
  const char* const end = parameter.data() + parameter.size();
  const auto digits = std::from_chars(parameter.data() + kLayers.size(), end, parsed.layer);
  parsed.of_layer = std::string(digits.ptr, end);
  if (parsed.of_layer.starts_with(kMixer)) parsed.of_mixer = parsed.of_layer.substr(kMixer.size());
  return parsed;
}

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
