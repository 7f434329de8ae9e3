// The names of halflife's activations in `transformers` and fla.
#include <array>
#include <span>

#include "core/error.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// halflife's name of an activation, and the name that is written. The names in `also` are accepted
// on import.
struct Activation {
  const char* ours;
  const char* theirs;
  std::array<const char*, 2> also;
};
constexpr Activation kOfTransformers[] = {
    {"relu", "relu", {}},
    {"relu2", "relu2", {}},
    {"relu6", "relu6", {}},
    {"leaky_relu", "leaky_relu", {}},
    {"silu", "silu", {"swish"}},
    {"sigmoid", "sigmoid", {}},
    {"tanh", "tanh", {}},
    {"gelu", "gelu", {"gelu_python"}},
    {"gelu_tanh", "gelu_pytorch_tanh", {"gelu_new", "gelu_fast"}},
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

}  // namespace halflife::interop
