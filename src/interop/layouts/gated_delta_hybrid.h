// Internal header: what the hybrids of Gated DeltaNet and softmax attention in `transformers` share
// (Qwen3-Next, Qwen3.5, OLMo Hybrid). These are the sizes, the kinds of layers, and the tensors of
// the parts outside the mixers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "interop/layouts/layouts.h"

namespace halflife::interop {

class GatedDeltaHybrid : public Layout {
 public:
  bool IsBuffer(const std::string& tensor, ConfigReader& reader) const override;
  // The class has biases of q, k, v and o, or none.
  std::vector<dist::ParamSpec> ZeroTensors(const model::ModelConfig& config) const override;

 protected:
  // The class's defaults of keys in config.json.
  struct Defaults {
    int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
  };
  static model::ModelConfig ReadSizes(ConfigReader& reader, const Defaults& defaults);
  // Reads layer_types. If there is no such key, `is_full` returns true for softmax layers.
  static std::vector<int64_t> ReadFullLayers(ConfigReader& reader, int64_t num_layers,
                                             const std::function<bool(int64_t layer)>& is_full);
  // Makes the model's mixer from these sizes and linear_conv_kernel_dim.
  struct DeltaSizes {
    int64_t num_heads, num_v_heads, head_dim_k, head_dim_v;
  };
  static model::MixerConfig ReadDelta(ConfigReader& reader, const DeltaSizes& defaults);
  static void WriteSizes(const model::ModelConfig& config, nlohmann::ordered_json& json);

  // Returns the mixer of the softmax layers. `absent` is for a model without any.
  static model::MixerConfig AttentionOf(const model::ModelConfig& config,
                                        const model::MixerConfig& absent);
  // Returns what none of the classes can express, in addition to PartObstacles.
  static std::vector<std::string> LayerObstacles(const model::ModelConfig& config);
  // Returns the obstacles of options that must be these. Each line begins with `where`.
  static void RequireOptions(const char* where, const model::MixerConfig& mixer,
                             const std::vector<model::Assignment>& required,
                             std::vector<std::string>& lines);
};

bool IsFullLayer(const model::ModelConfig& config, int64_t layer);

}  // namespace halflife::interop
