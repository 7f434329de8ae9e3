#include "model/parameters.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "core/error.h"
#include "core/philox.h"

namespace halflife::model {

at::Tensor AddBias(const at::Tensor& y, const Parameter& bias) {
  return bias.declared() ? y + *bias : y;
}

Parameter ParameterSet::Declare(dist::ParamSpec spec, Init init) {
  const bool taken = std::ranges::any_of(
      specs_, [&](const dist::ParamSpec& other) { return other.name == spec.name; });
  HL_CHECK(!taken, "parameter '", spec.name, "' is declared twice");
  Parameter parameter;
  parameter.tensor_ = std::make_shared<at::Tensor>();
  parameter.index_ = size();
  specs_.push_back(std::move(spec));
  inits_.push_back(init);
  handles_.push_back(parameter);
  return parameter;
}

void ParameterSet::Bind(int index, at::Tensor tensor) {
  const dist::ParamSpec& spec = specs_.at(index);
  HL_CHECK(tensor.sizes() == at::IntArrayRef(spec.shape), "parameter ", spec.name, " of shape ",
           at::IntArrayRef(spec.shape), " is bound to a tensor of shape ", tensor.sizes());
  *handles_[index].tensor_ = std::move(tensor);
}

void ParameterSet::Initialise(int index, uint64_t seed, float* out) const {
  const dist::ParamSpec& spec = specs_.at(index);
  const Init& init = inits_[index];
  const int64_t count = spec.count();
  if (init.kind != Init::Kind::kNormal) {
    std::fill(out, out + count, init.kind == Init::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const RandomKey key =
      MakeRandomKey(seed, RandomPurpose::kInit, NameHash32(spec.name.data(), spec.name.size()));
  for (int64_t first = 0; first < count; first += 4) {  // one draw gives four normals
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(first / 4), 0, 0);
    const NormalPair low = ToNormal(draw.x[0], draw.x[1]), high = ToNormal(draw.x[2], draw.x[3]);
    const double normals[4] = {low.a, low.b, high.a, high.b};
    for (int64_t i = first; i < std::min(count, first + 4); ++i)
      out[i] = static_cast<float>(init.std_dev * normals[i - first]);
  }
}

}  // namespace halflife::model
