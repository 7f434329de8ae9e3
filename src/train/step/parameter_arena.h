// Owns the memory of a training run's parameters: one flat fp32 array each for the main weights,
// the gradients and each state array of the optimizer, in ParameterLayout's order. If the compute
// dtype is not fp32, it also owns the copy of the compute region in that dtype. The model's
// parameters are views into it. Frozen parameters (LayoutConfig::frozen) have only weights, and
// autograd computes no gradients for them.
//
// With ZeRO (Rajbhandari et al., 2020) a rank holds only a part of some arrays
// (dist/shard_groups.h):
//
// | stage | part of W                      | part of S                                   |
// |-------|--------------------------------|---------------------------------------------|
// | 1     | states, copied main weights    |                                             |
// | 2     | the same                       | gradients                                   |
// | 3     | the same, main weights of units| gradients, weights of units to compute with |
//
// With stage 3 in fp32 and one shard group, the weights to compute with are the main weights.
//
//   ParameterArena arena(model.parameters(), {.device = at::kCPU, .compute_dtype = at::kFloat});
//   arena.Initialise(seed);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/parameter_gather.h"
#include "dist/parameter_layout.h"
#include "model/parameters.h"
#include "train/config/run_config.h"
#include "train/step/parameter_units.h"

namespace halflife::train {

class ParameterArena {
 public:
  struct Config {
    at::Device device = at::kCPU;               // kMeta: sizes without memory, for plans
    at::ScalarType compute_dtype = at::kFloat;  // kFloat or kBFloat16
    dist::LayoutConfig layout;
    int zero_stage = 0;
    int slice = 0;       // of layout.num_slices
    int num_shards = 0;  // S, a divisor of layout.num_slices: ranks of a shard group; 0: all
    std::vector<std::string> states = {};  // names of the optimizer's state arrays
    // With stage 3, which also needs layout.units: see ParameterUnits::Config.
    int num_units = 0, prefetch = 1;
  };
  // Returns the config of one rank of a run. The model has the parameters.
  static Config Of(const RunConfig& config, const model::LanguageModel& model, at::Device device,
                   int rank, int world_size);
  // Allocates and binds all parameters, which are leaves that require a gradient.
  ParameterArena(model::ParameterSet& parameters, const Config& config);

  const dist::ParameterLayout& layout() const { return layout_; }
  // [layout.num_held(main_sliced_end or division)] fp32 on the device.
  at::Tensor& main() { return main_; }
  at::Tensor& grads() { return grads_; }
  // Throws Error kInternal if the arena has no state array of this name.
  at::Tensor& state(std::string_view name);
  // Up to which element of the arena the main weights are slices; 0: whole.
  int64_t main_sliced_end() const { return main_sliced_end_; }
  const dist::Division& states_division() const { return states_division_; }
  const dist::Division& grads_division() const { return grads_division_; }
  // The arrays of a checkpoint, under their names there: main, then the state arrays.
  struct StoredArray {
    std::string name;
    at::Tensor* tensor;
    int64_t sliced_end;
    bool trained;  // has no elements of frozen buckets
  };
  std::vector<StoredArray> stored_arrays();
  // Returns true if this rank updates only its slices, false if it updates everything.
  bool sliced() const { return config_.zero_stage > 0; }
  int slice() const { return config_.slice; }
  // In the order of parameters.
  const std::vector<dist::Fragment>& updated_fragments() const { return updated_; }
  // The copy of the weights in the compute dtype. Undefined if ranks compute with main.
  // [num_compute_elements], indexed like main. With stage 3, only the part of the units that this
  // rank holds, followed by the parameters of no unit.
  const at::Tensor& compute_copy() const { return copy_; }
  // Returns true if the optimizer writes the copy. If not, RefreshComputeCopy() does after an
  // update.
  bool optimizer_writes_copy() const { return copy_.defined() && !units_; }
  // With stage 3: the memory of gathered weights, and what gathers them, with the communicators of
  // UnitGather::Parts.
  ParameterUnits* units() { return units_.get(); }
  dist::UnitGather::Parts UnitParts(dist::Communicator& shard, dist::ParameterGather& gather);
  // Returns the parameter's part of a whole array, in the parameter's shape.
  at::Tensor View(const at::Tensor& flat, int param) const;
  // The same for an array of whole gradients. Undefined for a frozen parameter.
  at::Tensor GradientView(const at::Tensor& flat, int param) const;
  // Sets the part of a parameter's main weights that this rank holds, and its compute copy.
  void SetWeights(int param, const at::Tensor& values);

  // Draws the parts that this rank updates, in blocks of 4 MiB. With ZeRO, the other ranks' parts
  // arrive when the weights are first gathered (StepRunner::ShareParameters).
  void Initialise(uint64_t seed);
  // Sets the part of a state array that this rank holds to the main weights.
  void CopyMainTo(std::string_view state_name);
  at::Tensor InitialWeights(int param) const;  // for the seed; fp32 on the CPU
  // Call this after main has changed. Rounds the part that this rank holds (to nearest even) into
  // the compute copy. Must not be called between a forward and its backward, because autograd does
  // not see these writes.
  void RefreshComputeCopy();
  // Returns the arrays that the ranks compute with, and gather after they have updated their
  // slices.
  std::vector<dist::GatheredArray> ComputedArrays() const;

 private:
  void DivideArrays();
  bool has_copy(int param) const;
  at::Tensor ComputedWith(int param) const;
  void CopyToCompute(const dist::Fragment& part, const at::Tensor& values);
  void SetPart(const dist::Fragment& part, const at::Tensor& values);
  bool in_unit(int param) const { return units_ && units_->has(param); }

  const Config config_;
  model::ParameterSet& parameters_;
  dist::ParameterLayout layout_;
  at::Device device_;
  std::unique_ptr<ParameterUnits> units_;  // with stage 3
  int64_t main_sliced_end_ = 0;
  int64_t copied_end_ = 0;  // elements before it are computed with from compute_, not from main_
  dist::Division states_division_{.trained = true}, grads_division_{.trained = true};
  dist::Division compute_division_;
  std::vector<dist::Fragment> updated_;
  uint64_t seed_ = 0;
  at::Tensor main_, grads_;
  std::vector<at::Tensor> states_;  // in the order of Config::states
  at::Tensor copy_;                 // see compute_copy()
  at::Tensor compute_;  // copy_, or the part of main_ that is computed with; undefined: main_
};

}  // namespace halflife::train
