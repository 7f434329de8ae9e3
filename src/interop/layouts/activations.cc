// The names that `transformers` has for halflife's activations.
#include <array>

#include "core/error.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// halflife's name of an activation and the one that is written; further names are read.
struct Activation {
  const char* ours;
  const char* theirs;
  std::array<const char*, 2> also;
};
constexpr Activation kActivations[] = {
    {"relu", "relu", {}},
    {"relu2", "relu2", {}},
    {"relu6", "relu6", {}},
    {"leaky_relu", "leaky_relu", {}},
    {"silu", "silu", {"swish"}},
    {"sigmoid", "sigmoid", {}},
    {"tanh", "tanh", {}},
    {"gelu", "gelu", {"gelu_python"}},
    {"gelu_tanh", "gelu_pytorch_tanh", {"gelu_new", "gelu_fast"}},
    {"mish", "mish", {}},
    {"none", "linear", {}},
};

}  // namespace

std::string ReadActivation(ConfigReader& reader, const std::string& key,
                           const std::string& absent) {
  const std::string name = reader.String(key, absent);
  for (const Activation& activation : kActivations) {
    if (name == activation.theirs) return activation.ours;
    for (const char* other : activation.also)
      if (other != nullptr && name == other) return activation.ours;
  }
  const auto theirs = [](const Activation& activation) { return activation.theirs; };
  reader.Require(false, key, " is '", name, "'; null or one of ", Join(kActivations, ", ", theirs),
                 " would work");
  return "none";
}

void RequireSwish(ConfigReader& reader, const std::string& spelling) {
  const std::string name = reader.String("hidden_act", spelling);
  reader.Require(name == "swish" || name == "silu", "hidden_act is '", name, "'; ", spelling,
                 " would work");
}

std::string WrittenActivation(const std::string& ours) {
  for (const Activation& activation : kActivations)
    if (ours == activation.ours) return activation.theirs;
  HL_FAIL(ExitCode::kInternal, "no name of transformers for the activation '", ours, "'");
}

}  // namespace halflife::interop
