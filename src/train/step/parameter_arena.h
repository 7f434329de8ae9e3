// Owns the memory of a training run's parameters: one flat fp32 array each for the main weights,
// the gradients and each state array of the optimizer, in ParameterLayout's order. If the compute
// dtype is not fp32, it also owns the copy of the compute region in that dtype. The model's
// parameters are views into it.
//
// With ZeRO (Rajbhandari et al., 2020) a rank holds only its slices of some arrays: of the state
// arrays, of the main weights that have a compute copy, and of gradients.
//
//   ParameterArena arena(model.parameters(), {.device = at::kCPU, .compute_dtype = at::kFloat});
//   arena.Initialise(seed);
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "dist/parameter_gather.h"
#include "dist/parameter_layout.h"
#include "model/parameters.h"
#include "train/config/run_config.h"

namespace halflife::train {

class ParameterArena {
 public:
  struct Config {
    at::Device device = at::kCPU;               // kMeta: sizes without memory, for plans
    at::ScalarType compute_dtype = at::kFloat;  // kFloat or kBFloat16
    dist::LayoutConfig layout;
    int zero_stage = 0;  // 1: slices of arrays that only the optimizer reads; 2: also of gradients
    int slice = 0;       // of layout.num_slices
    std::vector<std::string> states = {};  // names of the optimizer's state arrays
  };
  // Returns the config of one rank of a run.
  static Config Of(const RunConfig& config, at::Device device, int rank, int world_size);
  // Allocates and binds all parameters, which are leaves that require a gradient.
  ParameterArena(model::ParameterSet& parameters, const Config& config);

  const dist::ParameterLayout& layout() const { return layout_; }
  // [layout.num_held(sliced_end)] fp32 on the device.
  at::Tensor& main() { return main_; }
  at::Tensor& grads() { return grads_; }
  // Error kInternal if the arena has no state array of this name.
  at::Tensor& state(std::string_view name);
  // Up to which element of the arena these arrays hold slices; 0: whole.
  int64_t main_sliced_end() const { return main_sliced_end_; }
  int64_t states_sliced_end() const { return states_sliced_end_; }
  int64_t grads_sliced_end() const { return grads_sliced_end_; }
  // The arrays of a checkpoint, under their names there: main, then the state arrays.
  struct StoredArray {
    std::string name;
    at::Tensor* tensor;
    int64_t sliced_end;
  };
  std::vector<StoredArray> stored_arrays();
  // True if this rank updates only its slices, false if it updates everything.
  bool sliced() const { return config_.zero_stage > 0; }
  // In the order of parameters.
  const std::vector<dist::Fragment>& updated_fragments() const { return updated_; }
  // [num_compute_elements] in the compute dtype, indexed like main. Undefined if that dtype is
  // fp32.
  const at::Tensor& compute_copy() const { return compute_; }
  // Returns the parameter's part of a whole array, in the parameter's shape.
  at::Tensor View(const at::Tensor& flat, int param) const;
  // Sets the part of a parameter's main weights that this rank holds, and its compute copy.
  void SetWeights(int param, const at::Tensor& values);

  void Initialise(uint64_t seed);
  at::Tensor InitialWeights(int param) const;  // for the seed; fp32 on the CPU
  // Call this after main has changed. Rounds the part that this rank holds (to nearest even) into
  // the compute copy. Must not be called between a forward and its backward, because autograd does
  // not see these writes.
  void RefreshComputeCopy();
  // Returns the arrays that the ranks compute with, and gather after they have updated their
  // slices.
  std::vector<dist::GatheredArray> ComputedArrays() const;

 private:
  bool has_copy(int param) const;
  at::Tensor ComputedWith(int param) const;

  const Config config_;
  model::ParameterSet& parameters_;
  dist::ParameterLayout layout_;
  at::Device device_;
  int64_t main_sliced_end_ = 0, states_sliced_end_ = 0, grads_sliced_end_ = 0;
  std::vector<dist::Fragment> updated_;
  uint64_t seed_ = 0;
  at::Tensor main_, grads_;
  std::vector<at::Tensor> states_;  // in the order of Config::states
  at::Tensor compute_;  // [num_compute_elements] in the compute dtype; undefined for fp32
};

}  // namespace halflife::train
