// Owns the memory of a training run's parameters: one flat fp32 array each for main weights,
// gradients and Adam's m and v, in ParameterLayout's order, plus the copy of the compute region in
// the compute dtype where that is not fp32. The model's parameters are views into it.
//
//   ParameterArena arena(model.parameters(), {.device = at::kCPU, .compute_dtype = at::kFloat});
//   arena.Initialise(seed);
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dist/parameter_layout.h"
#include "model/parameters.h"

namespace halflife::train {

class ParameterArena {
 public:
  struct Config {
    at::Device device = at::kCPU;
    at::ScalarType compute_dtype = at::kFloat;  // kFloat or kBFloat16
    dist::LayoutConfig layout;
  };
  // Allocates and binds every parameter of `parameters` (a leaf that requires a gradient).
  ParameterArena(model::ParameterSet& parameters, const Config& config);

  const dist::ParameterLayout& layout() const { return layout_; }
  // [num_elements] fp32, on the device.
  at::Tensor& main() { return main_; }
  at::Tensor& grads() { return grads_; }
  at::Tensor& adam_m() { return adam_m_; }
  at::Tensor& adam_v() { return adam_v_; }
  // [num_compute_elements] in the compute dtype, by main's index; undefined where that is fp32.
  const at::Tensor& compute_copy() const { return compute_; }
  // This parameter's part of one of them, in its shape.
  at::Tensor View(const at::Tensor& flat, int param) const;

  void Initialise(uint64_t seed);
  // After main changed: rounds it (to nearest even) into the compute copy. Nothing may run between
  // a forward and its backward: autograd does not see these writes.
  void RefreshComputeCopy();

 private:
  model::ParameterSet& parameters_;
  dist::ParameterLayout layout_;
  at::Device device_;
  at::Tensor main_, grads_, adam_m_, adam_v_;
  at::Tensor compute_;  // [num_compute_elements] in the compute dtype; undefined for fp32
};

}  // namespace halflife::train
