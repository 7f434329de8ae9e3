// fla's LinearAttention: feature maps, a norm per head, no positions.
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// Keys with the same name in both programs.
constexpr const char* kFlags[] = {"tie_feature_map_qk", "norm_q", "norm_k"};

class LinearAttn : public Layout {
 public:
  std::string model_type() const override { return "linear_attn"; }
  std::string class_name() const override { return "LinearAttentionForCausalLM"; }
  std::string mixer() const override { return "linear_attention"; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    if (!config.mixer.Get<bool>("output_norm"))
      lines.emplace_back(
          "the mixer has no output_norm. Only mixers with output_norm are supported.");
    if (config.mixer.Get<std::string>("feature_map") == "exp")
      lines.emplace_back("feature_map is exp, which the class does not support. Use elu.");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    WriteFlaFrame(config, json);
    WriteFlaHeads(options, json);
    json["feature_map"] = options.Get<std::string>("feature_map");
    for (const char* flag : kFlags) json[flag] = options.Get<bool>(flag);
    json["norm_feature_map"] = options.Get<bool>("normalise");
    json["elementwise_affine"] = options.Get<bool>("norm_affine");
    json["attn"] = FlaHybrid(config);
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFlaFrame(reader, {});
    model::MixerConfig& options = config.mixer = model::MixerConfig(mixer());
    ReadFlaHeads(reader, options, /*num_heads=*/4, /*expand_k=*/1, /*expand_v=*/1);
    options.Set("feature_map", reader.String("feature_map", "elementwise_product"));
    for (const char* flag : kFlags) options.Set(flag, reader.Bool(flag, false));
    options.Set("normalise", reader.Bool("norm_feature_map", false));
    options.Set("output_norm", true);
    options.Set("norm_affine", reader.Bool("elementwise_affine", true));
    ReadFlaHybrid(reader, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return FlaName(parameter);
  }
  // A feature map that q and k share is one module with two names.
  std::string CopyOf(const std::string& tensor) const override {
    constexpr Renaming kOfKeys[] = {{".feature_map_k.", ".feature_map_q."}};
    std::string original = Renamed(tensor, kOfKeys);
    return original == tensor ? std::string() : original;
  }
};

}  // namespace

std::unique_ptr<Layout> MakeLinearAttn() { return std::make_unique<LinearAttn>(); }

}  // namespace halflife::interop
