// What LEAP and Fastformer share: heads that each pool the tokens of a window with weights that
// belong to the tokens (kernels/focus_pool), the windows of their layers, the standardisation of a
// head's channels, and the state of a pool. A mixer of the family brings its projections, its log
// weights and what it does with the pooled rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "model/mixers/variants.h"
#include "ops/focus_pool/focus_pool.h"

namespace halflife::model {

// Options of the family, behind each mixer's own `preset`.
struct FocusOptions : OptionsOf<FocusOptions> {
  std::string preset;
  int64_t num_heads = 4;
  // How wide a layer's window is: `window` in every layer ("same"), or by a rule of the layer's
  // number (see AutomaticWindows); "preset": the rule of the preset.
  std::string windows = "preset";
  int64_t window = 0;  // tokens, its own included; 0: all
  // A window that a rule makes so long is all: the longest row that the model is made for.
  int64_t max_length = 1024;
  double rescale = 0;  // factor on the mean of a log weight's products; 0: the preset's
  double dropout = 0;
  int64_t head_dim = 0;  // set by Resolve

  FocusOptions(std::string usual, std::vector<std::string> presets)
      : preset(std::move(usual)), presets_(std::move(presets)) {}
  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;

 private:
  std::vector<std::string> presets_;
};

// Return the names of a table of presets, and the entry of one of them.
std::vector<std::string> PresetNames(const auto& presets) {
  std::vector<std::string> names;
  for (const auto& preset : presets) names.emplace_back(preset.name);
  return names;
}
const auto& PresetOf(const auto& presets, std::string_view name) {
  return *std::ranges::find_if(presets, [&](const auto& preset) { return preset.name == name; });
}

// Windows of the layers of a model by a rule, 0 where a layer sees all:
//   doubling           4, 8, 16, ..., and all in the last
//   doubling_between   all in the first and in the last, 4, 8, 16, ... between them
//   cycle              all, then 4, 8, 16, all, over and over
std::vector<int64_t> AutomaticWindows(const std::string& rule, int64_t num_layers);
// That of the layer at hand; `of_preset` is the preset's rule. `options` are resolved.
int64_t WindowOf(const FocusOptions& options, const char* of_preset, const PartContext& context);

// Pools one payload of every head over a window, and keeps what that takes in a mixer's state, from
// the tensor `first_state` on.
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

  // Named with the prefix: sums and their scale without a window, the last tokens with one.
  std::vector<StateTensor> state(const std::string& prefix) const;

  // log_weight [B, T, H] fp32, u [B, T, H, P] -> [B, T, H, P]. `after` null: no state is wanted.
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
