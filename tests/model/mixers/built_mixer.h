// A single mixer whose parameters a test can read and replace by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <string>

#include "core/error.h"
#include "model/mixer.h"
#include "model/positions/positions.h"
#include "ops/random_tensors.h"

namespace halflife::test {

struct LayerPlace {
  int64_t layer = 0, num_layers = 1;
  model::PositionsConfig positions = {};  // The model's position method.
};

class BuiltMixer {
 public:
  BuiltMixer(const model::MixerConfig& config, int64_t model_dim,
             at::ScalarType dtype = at::kDouble, double std_dev = 0.3,
             const LayerPlace& place = {}) {
    model::PartContext context = {.sizes = {.model_dim = model_dim, .num_layers = place.num_layers},
                                  .layer = place.layer,
                                  .parameters = &parameters_,
                                  .initializer_range = std_dev};
    positions_ = MakePositions(place.positions, context.Below("positions."));
    context.positions = positions_.get();
    mixer_ = MakeMixer(config, context);
    for (int i = 0; i < parameters_.size(); ++i) {
      at::Tensor tensor = at::empty(parameters_.specs()[i].shape, at::kFloat);
      parameters_.Initialise(i, 11, tensor.mutable_data_ptr<float>());
      parameters_.Bind(i, tensor.to(dtype));
    }
  }

  const model::Mixer& mixer() const { return *mixer_; }
  const model::Mixer* operator->() const { return mixer_.get(); }
  const model::ParameterSet& parameters() const { return parameters_; }
  const at::Tensor& operator[](const std::string& name) const {
    return parameters_.tensor(IndexOf(name));
  }
  void Set(const std::string& name, const at::Tensor& value) {
    const int index = IndexOf(name);
    parameters_.Bind(index, value.to(parameters_.tensor(index).scalar_type())
                                .reshape(parameters_.specs()[index].shape));
  }

  // Gives normal values to parameters that start at zero (biases), so that a formula without them
  // fails.
  void FillZeros() {
    for (int i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& tensor = parameters_.tensor(i);
      if (!tensor.any().item<bool>())
        parameters_.Bind(i, Normal(tensor.sizes().vec(), 100 + i, tensor.scalar_type()));
    }
  }
  const dist::ParamSpec& spec(const std::string& name) const {
    return parameters_.specs()[IndexOf(name)];
  }

  // Runs whole rows x [B, T, D] with one document each.
  at::Tensor Run(const at::Tensor& x) const {
    const auto slice = model::SequenceSlice::Contiguous(x.size(0), x.size(1), 0, x.device());
    return mixer_->Forward({.x = x, .slice = slice}).y;
  }

 private:
  int IndexOf(const std::string& name) const {
    for (int i = 0; i < parameters_.size(); ++i)
      if (parameters_.specs()[i].name == name) return i;
    HL_FAIL(ExitCode::kInternal, "no parameter is called ", name);
  }
  model::ParameterSet parameters_;
  std::unique_ptr<model::Positions> positions_;
  std::unique_ptr<model::Mixer> mixer_;
};

}  // namespace halflife::test
