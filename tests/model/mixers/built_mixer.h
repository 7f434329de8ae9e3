// A single mixer whose parameters a test can read and replace by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/mixer.h"
#include "model/positions/positions.h"
#include "ops/random_tensors.h"

namespace halflife::test {

struct LayerPlace {
  int64_t layer = 0, num_layers = 1;
  model::PositionsConfig positions = {};  // The model's position method.
  double norm_eps = 1e-6;
  uint64_t seed = 11;  // of the initial values
};

class BuiltMixer {
 public:
  BuiltMixer(const model::MixerConfig& config, int64_t model_dim,
             at::ScalarType dtype = at::kDouble, double std_dev = 0.3,
             const LayerPlace& place = {}) {
    model::PartContext context = {.sizes = {.model_dim = model_dim, .num_layers = place.num_layers},
                                  .layer = place.layer,
                                  .parameters = &parameters_,
                                  .initializer_range = std_dev,
                                  .norm_eps = place.norm_eps};
    positions_ = MakePositions(place.positions, context.Below("positions."));
    context.positions = positions_.get();
    mixer_ = MakeMixer(config, context);
    for (int i = 0; i < parameters_.size(); ++i) {
      at::Tensor tensor = at::empty(parameters_.specs()[i].shape, at::kFloat);
      parameters_.Initialise(i, place.seed, tensor.mutable_data_ptr<float>());
      parameters_.Bind(i, tensor.to(dtype));
    }
  }

  const model::Mixer& mixer() const { return *mixer_; }
  const model::Mixer* operator->() const { return mixer_.get(); }
  const model::ParameterSet& parameters() const { return parameters_; }
  const at::Tensor& operator[](const std::string& name) const {
    return parameters_.tensor(IndexOf(name));
  }
  bool Has(const std::string& name) const { return FindIndex(name) >= 0; }
  void Set(const std::string& name, const at::Tensor& value) {
    Bind(name, value.to((*this)[name].scalar_type()).reshape(spec(name).shape));
  }
  // Does the same for a value of any dtype, which the parameter then has.
  void Bind(const std::string& name, const at::Tensor& value) {
    parameters_.Bind(IndexOf(name), value);
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

  struct Tolerances {
    double outputs, gradients;
  };
  // Expects that the outputs for rows x [B, T, D], and the gradients of x and of every parameter,
  // are those of `formula`, which reads the parameters from this mixer.
  void ExpectFormula(std::vector<int64_t> shape, const Tolerances& tolerances,
                     const std::function<at::Tensor(const at::Tensor& x)>& formula) {
    std::vector<at::Tensor> leaves = {Normal(shape, 1).requires_grad_()};
    for (int i = 0; i < parameters_.size(); ++i) {
      leaves.push_back(parameters_.tensor(i).clone().requires_grad_());
      parameters_.Bind(i, leaves.back());
    }
    const at::Tensor got = Run(leaves[0]), want = formula(leaves[0]), dy = Normal(shape, 2);
    EXPECT_TRUE(Close(got, want, tolerances.outputs));
    const auto got_grads = torch::autograd::grad({got}, leaves, {dy}),
               want_grads = torch::autograd::grad({want}, leaves, {dy});
    for (size_t i = 0; i < leaves.size(); ++i)
      EXPECT_TRUE(Close(got_grads[i], want_grads[i], tolerances.gradients)) << i;
  }

 private:
  int FindIndex(const std::string& name) const {
    for (int i = 0; i < parameters_.size(); ++i)
      if (parameters_.specs()[i].name == name) return i;
    return -1;
  }
  int IndexOf(const std::string& name) const {
    const int index = FindIndex(name);
    HL_CHECK(index >= 0, "no parameter is called ", name);
    return index;
  }
  model::ParameterSet parameters_;
  std::unique_ptr<model::Positions> positions_;
  std::unique_ptr<model::Mixer> mixer_;
};

}  // namespace halflife::test
