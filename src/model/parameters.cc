#include "model/parameters.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "ops/rows/bias_map.h"

namespace halflife::model {

at::Tensor ForEachUse(const Parameter& parameter) { return parameter->view_as(*parameter); }

at::Tensor AddBias(const at::Tensor& y, const Parameter& bias) {
  return bias.declared() ? ops::BiasMap({{.x = y, .bias = *bias}})[0] : y;
}

Parameter ParameterSet::Declare(dist::ParamSpec spec, Init init) {
  const bool taken = std::ranges::any_of(
      specs_, [&](const dist::ParamSpec& other) { return other.name == spec.name; });
  HL_CHECK(!taken, "parameter '", spec.name, "' is declared twice");
  Parameter parameter;
  parameter.tensor_ = std::make_shared<at::Tensor>();
  parameter.index_ = size();
  num_elements_ += spec.count();
  specs_.push_back(std::move(spec));
  inits_.push_back(init);
  handles_.push_back(parameter);
  last_readers_.push_back(layer_);
  return parameter;
}

Parameter ParameterSet::DeclareShared(const dist::ParamSpec& spec, const Init& init) {
  const auto declared = std::ranges::find(specs_, spec.name, &dist::ParamSpec::name);
  if (declared == specs_.end()) return Declare(spec, init);
  HL_CHECK(declared->shape == spec.shape, "the shared parameter '", spec.name, "' has the shape ",
           at::IntArrayRef(declared->shape), " in one layer and ", at::IntArrayRef(spec.shape),
           " in another. Use the same options in both layers.");
  const Parameter parameter = handles_[declared - specs_.begin()];
  AddReader(parameter);
  return parameter;
}

void ParameterSet::AddReader(const Parameter& parameter) {
  const int index = parameter.index();
  if (std::exchange(last_readers_[index], layer_) != layer_) ++specs_[index].readers;
}

void ParameterSet::Bind(int index, at::Tensor tensor) {
  const dist::ParamSpec& spec = specs_.at(index);
  HL_CHECK(tensor.sizes() == at::IntArrayRef(spec.shape), "parameter ", spec.name, " of shape ",
           at::IntArrayRef(spec.shape), " is bound to a tensor of shape ", tensor.sizes());
  *handles_[index].tensor_ = std::move(tensor);
}

void ParameterSet::Initialise(int index, uint64_t seed, float* out) const {
  InitialisePart(index, seed, {0, specs_.at(index).count()}, out);
}

void ParameterSet::InitialisePart(int index, uint64_t seed, Init::Part part, float* out) const {
  const dist::ParamSpec& spec = specs_.at(index);
  inits_[index].Fill(spec.name, spec.shape, seed, part, out);
}

}  // namespace halflife::model
