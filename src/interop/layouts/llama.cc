// The Llama class of `transformers`: softmax attention that can be loaded without fla and its
// kernels.
#include <nlohmann/json.hpp>

#include "interop/layouts/llama_frame.h"

namespace halflife::interop {
namespace {

class Llama : public LlamaFrame {
 public:
  Llama() : LlamaFrame({}) {}
  std::string model_type() const override { return "llama"; }
  std::string class_name() const override { return "LlamaForCausalLM"; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FrameObstacles(config, MlpBias::kOption);
    const model::MixerConfig& options = config.mixer;
    if (options.Get<bool>("qk_norm")) lines.emplace_back("qk_norm is on");
    if (options.Get<int64_t>("window") > 0)
      lines.emplace_back(Concat("window is ", options.Get<int64_t>("window")));
    AddBiasObstacles(options, lines);
    if (config.model_dim % options.Get<int64_t>("num_heads") != 0)
      lines.emplace_back("num_heads does not divide model_dim, which the class checks");
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteFrame(config, json);
    json["attention_bias"] = config.mixer.Get<bool>("qkv_bias");
    json["mlp_bias"] = config.channel_mixer.Get<bool>("bias");
    json["pretraining_tp"] = 1;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    reader.Ignore({"pretraining_tp"});
    model::ModelConfig config = ReadFrame(reader);
    config.channel_mixer.Set("bias", reader.Bool("mlp_bias", false));
    ReadAttentionBias(reader, config.mixer);
    return config;
  }

  std::vector<dist::ParamSpec> ZeroTensors(const model::ModelConfig& config) const override {
    return OutputBiases(config);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeLlama() { return std::make_unique<Llama>(); }

}  // namespace halflife::interop
