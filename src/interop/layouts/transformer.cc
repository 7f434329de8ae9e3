// fla's Transformer: softmax attention. It also supports RMSNorm of q and k and a sliding window,
// which llama cannot express.
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

class Transformer : public Layout {
 public:
  std::string model_type() const override { return "transformer"; }
  std::string class_name() const override { return "TransformerForCausalLM"; }
  std::string mixer() const override { return "softmax"; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(config, {});
    const model::MixerConfig& options = config.mixer;
    if (options.Get<bool>("out_bias")) lines.emplace_back("out_bias is on");
    if (options.Get<int64_t>("head_dim") * options.Get<int64_t>("num_heads") != config.model_dim)
      lines.emplace_back("head_dim is not model_dim / num_heads");
    if (options.Get<double>("rope_theta") == 0) lines.emplace_back("q and k are not rotated");
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    WriteFlaFrame(config, json);
    json["elementwise_affine"] = true;
    json["num_heads"] = options.Get<int64_t>("num_heads");
    json["num_kv_heads"] = options.Get<int64_t>("num_kv_heads");
    json["qkv_bias"] = options.Get<bool>("qkv_bias");
    json["qk_norm"] = options.Get<bool>("qk_norm");
    json["window_size"] = nullptr;
    if (options.Get<int64_t>("window") > 0) json["window_size"] = options.Get<int64_t>("window");
    json["rope_theta"] = options.Get<double>("rope_theta");
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFlaFrame(reader, {});
    config.mixer = model::MixerConfig(mixer());
    const int64_t heads = reader.Int("num_heads", 32);
    config.mixer.Set("num_heads", heads);
    config.mixer.Set("num_kv_heads", reader.Int("num_kv_heads", heads));
    config.mixer.Set("qkv_bias", reader.Bool("qkv_bias", false));
    config.mixer.Set("qk_norm", reader.Bool("qk_norm", false));
    config.mixer.Set("window", reader.Int("window_size", 0));
    config.mixer.Set("rope_theta", reader.Double("rope_theta", 10000));
    reader.Ignore({"elementwise_affine"});  // The class has no such norm.
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return FlaName(parameter);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeTransformer() { return std::make_unique<Transformer>(); }

}  // namespace halflife::interop
