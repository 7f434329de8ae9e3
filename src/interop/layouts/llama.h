// Internal header: what the layouts of LlamaForCausalLM and of the classes that derive from it
// share. These are the sizes, RMSNorm, the SwiGLU block, ties, grouped heads, rotary positions and
// tensor names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "interop/layouts/layouts.h"

namespace halflife::interop {

// sliding_window of classes with windows, if config.json lacks the key.
inline constexpr int64_t kUsualWindow = 4096;

class LlamaFrame : public Layout {
 public:
  // The class's defaults of keys in config.json.
  struct Defaults {
    int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_layers = 32;
    int64_t num_heads = 32, num_kv_heads = 0;  // 0: num_heads
    int64_t head_dim = 0;                      // 0: hidden_size / num_heads
    int64_t max_positions = 2048;
  };
  explicit LlamaFrame(const Defaults& defaults) : defaults_(defaults) {}

  PositionsKey positions_key() const override { return {.usual = defaults_.max_positions}; }
  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override;
  bool IsBuffer(const std::string& tensor, ConfigReader& reader) const override;

 protected:
  // Returns what none of the classes can express.
  static std::vector<std::string> FrameObstacles(const model::ModelConfig& config,
                                                 MlpBias mlp_bias);
  static void WriteFrame(const model::ModelConfig& config, nlohmann::ordered_json& json);
  model::ModelConfig ReadFrame(ConfigReader& reader) const;

  // `attention_bias` of a class applies to q, k, v and o together.
  static void AddBiasObstacles(const model::MixerConfig& mixer, std::vector<std::string>& lines);
  static void ReadAttentionBias(ConfigReader& reader, model::MixerConfig& mixer);
  // Returns the biases of o of a model that has biases only of q, k and v.
  static std::vector<dist::ParamSpec> OutputBiases(const model::ModelConfig& config);

 private:
  Defaults defaults_;
};

// Returns the window of each layer (0: all keys), or nothing if a layer differs from the model's
// mixer in more than its window.
std::optional<std::vector<int64_t>> WindowsOfLayers(const model::ModelConfig& config);

}  // namespace halflife::interop
