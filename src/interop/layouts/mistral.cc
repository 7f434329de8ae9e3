// The Mistral class of `transformers`: Llama without biases, with a window of visible keys in all
// layers.
#include <nlohmann/json.hpp>

#include "interop/layouts/llama_frame.h"

namespace halflife::interop {
namespace {

class Mistral : public LlamaFrame {
 public:
  Mistral()
      : LlamaFrame({.intermediate_size = 14336, .num_kv_heads = 8, .max_positions = 131072}) {}
  std::string model_type() const override { return "mistral"; }
  std::string class_name() const override { return "MistralForCausalLM"; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FrameObstacles(config, MlpBias::kOff);
    for (const char* option : {"qk_norm", "qkv_bias", "out_bias"})
      if (config.mixer.Get<bool>(option)) lines.emplace_back(Concat(option, " is on"));
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteFrame(config, json);
    json["sliding_window"] = nullptr;
    if (const auto window = config.mixer.Get<int64_t>("window"); window > 0)
      json["sliding_window"] = window;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFrame(reader);
    if (!reader.IsNull("sliding_window"))
      config.mixer.Set("window", reader.Int("sliding_window", kUsualWindow));
    reader.Require(!reader.Has("layer_types"),
                   "layer_types is set, but all layers of the class have the same window. Remove "
                   "the key.");
    return config;
  }

  bool loads_byt5() const override { return false; }
};

}  // namespace

std::unique_ptr<Layout> MakeMistral() { return std::make_unique<Mistral>(); }

}  // namespace halflife::interop
