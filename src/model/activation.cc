#include "model/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include "core/error.h"

namespace halflife::model {
namespace {

struct Entry {
  const char* name;
  at::Tensor (*apply)(const at::Tensor&);
  int num_kept = 1;  // the input
};

constexpr Entry kActivations[] = {
    {"none", nullptr, 0},
    {"relu", [](const at::Tensor& x) { return at::relu(x); }, 0},
    {"relu2", [](const at::Tensor& x) { return at::relu(x).square(); }},
    {"relu6", [](const at::Tensor& x) { return at::clamp(x, 0, 6); }},
    {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x); }},
    {"silu", [](const at::Tensor& x) { return at::silu(x); }},
    {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }, 0},
    {"tanh", [](const at::Tensor& x) { return at::tanh(x); }, 0},
    {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
    {"gelu_tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
    // x sigmoid(1.702 x)
    {"quick_gelu", [](const at::Tensor& x) { return x * at::sigmoid(1.702 * x); }, 2},
    {"mish", [](const at::Tensor& x) { return at::mish(x); }},
};

}  // namespace

std::vector<std::string> Activation::Names() {
  std::vector<std::string> names;
  for (const Entry& entry : kActivations) names.emplace_back(entry.name);
  return names;
}

Activation Activation::Named(const std::string& name) {
  for (const Entry& entry : kActivations) {
    if (name != entry.name) continue;
    Activation activation;
    activation.apply_ = entry.apply;
    activation.num_kept_ = entry.num_kept;
    return activation;
  }
  HL_FAIL(ExitCode::kInternal, "no activation is called '", name, "'");
}

}  // namespace halflife::model
