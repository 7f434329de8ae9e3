// The common parts of LEAP and Fastformer: their options, the windows of their layers, and pools.
// A pool averages the tokens of a window, per head, with one weight per token
// (kernels/focus_pool). Each mixer provides its projections and log weights, and uses the pooled
// rows in its own way.
//
// Shapes: B batch, T seq_len, H heads, P payload channels per head.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "model/mixers/variants.h"
#include "ops/focus_pool/focus_pool.h"

namespace halflife::model {

// The options of both mixers. The choices of `preset` differ.
struct FocusOptions : OptionsOf<FocusOptions> {
  std::string preset;
  int64_t num_heads = 4;
  // The rule for the windows of the layers: "same" (`window` in every layer), a rule of
  // AutomaticWindows, or "preset" (the rule of the preset).
  std::string windows = "preset";
  int64_t window = 0;  // in tokens, including the own one; 0: unlimited
  // The longest row of the model. A rule's window of at least this length becomes unlimited.
  int64_t max_length = 1024;
  double rescale = 0;  // factor c on log weights; 0: the preset's
  double dropout = 0;
  int64_t head_dim = 0;  // computed by Resolve

  FocusOptions(std::string usual, std::vector<std::string> presets)
      : preset(std::move(usual)), presets_(std::move(presets)) {}
  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;

 private:
  std::vector<std::string> presets_;
};

// The names in a table of presets, and the preset of a name.
std::vector<std::string> PresetNames(const auto& presets) {
  std::vector<std::string> names;
  for (const auto& preset : presets) names.emplace_back(preset.name);
  return names;
}
const auto& PresetOf(const auto& presets, std::string_view name) {
  return *std::ranges::find_if(presets, [&](const auto& preset) { return preset.name == name; });
}

// The windows of the layers of a model by a rule. 0 means unlimited, written as "all" here:
//   doubling           4, 8, 16, ...; all in the last layer
//   doubling_between   all in the first and the last layer; 4, 8, 16, ... between them
//   cycle              all, 4, 8, 16, repeated
std::vector<int64_t> AutomaticWindows(const std::string& rule, int64_t num_layers);
// Returns the window of the layer of `context`; 0: unlimited. `of_preset` is the rule of the
// preset. `options` must be resolved.
int64_t WindowOf(const FocusOptions& options, const char* of_preset, const PartContext& context);

// Pools one payload per head over a window. Its state is a range of the mixer's state tensors that
// starts at index `first_state`.
class WindowPool {
 public:
  struct Shape {
    int64_t window = 0;
    double eps = 0;
    int64_t num_heads = 0, dim = 0;  // H, P
    size_t first_state = 0;
  };
  WindowPool() = default;
  explicit WindowPool(const Shape& shape) : shape_(shape) {}

  // Returns the state tensors, with `prefix` in front of their names: sums and their log scale if
  // the window is unlimited, else the last tokens.
  std::vector<StateTensor> state(const std::string& prefix) const;

  // log_weight [B, T, H] fp32, u [B, T, H, P] -> [B, T, H, P]. If `after` is not null, the state
  // after the slice is appended to it.
  at::Tensor Forward(const at::Tensor& log_weight, const at::Tensor& u, const MixerCall& call,
                     MixerState* after) const;
  // log_weight [B, H], u [B, H, P] -> [B, H, P].
  at::Tensor Step(const at::Tensor& log_weight, const at::Tensor& u, MixerState& state) const;

  const Shape& shape() const { return shape_; }

 private:
  ops::FocusPoolState Read(const MixerState& state) const;

  Shape shape_;
};

}  // namespace halflife::model
