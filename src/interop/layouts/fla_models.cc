// Classes of flash-linear-attention (fla): GLA, LinearAttention, RetNet and Transformer.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// fla's GLA: gated linear attention. The gate's inner rank and its normaliser are constants in both
// programs. Unlike RetNet's, its feature map is looked up in fla's own table.
class Gla : public FlaLayout {
 public:
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    const std::vector<std::string> named = NamedActivations(ActivationNames::kFla);
    const auto map = config.mixer.Get<std::string>("feature_map");
    if (map != "none" && std::ranges::find(named, map) == named.end())
      lines.push_back(
          Concat("feature_map is ", map, ". Only none, ", Join(named, ", "), " are supported."));
    return lines;
  }

  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    WriteFlaLinear(options, ActivationNames::kFla, json);
    WriteFlaShortConv(options, json);
    json["clamp_min"] = nullptr;
    if (std::isfinite(options.Get<double>("clamp_min")))
      json["clamp_min"] = Number(options.Get<double>("clamp_min"));
    json["use_gk"] = true;
    json["use_gv"] = false;
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    ReadFlaLinear(reader, config.mixer, /*num_heads=*/4, /*expand_k=*/0.5, /*expand_v=*/1,
                  ActivationNames::kFla);
    ReadFlaShortConv(reader, /*by_default=*/false, config.mixer);
    if (reader.Has("clamp_min")) config.mixer.Set("clamp_min", reader.Double("clamp_min", 0));
    reader.Ignore({"use_gk", "use_gv"});  // The class never reads them.
  }

  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override {
    return FlaLinearName(parameter, reader);
  }
};

// Keys with the same name in both programs.
constexpr const char* kFlags[] = {"tie_feature_map_qk", "norm_q", "norm_k"};

// fla's LinearAttention: feature maps, a norm per head, no positions.
class LinearAttn : public FlaLayout {
 public:
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    if (!config.mixer.Get<bool>("output_norm"))
      lines.emplace_back(
          "the mixer has no output_norm. Only mixers with output_norm are supported.");
    if (config.mixer.Get<std::string>("feature_map") == "exp")
      lines.emplace_back("feature_map is exp, which the class does not support. Use elu.");
    return lines;
  }

  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    WriteFlaHeads(options, json);
    json["feature_map"] = options.Get<std::string>("feature_map");
    for (const char* flag : kFlags) json[flag] = options.Get<bool>(flag);
    json["norm_feature_map"] = options.Get<bool>("normalise");
    json["elementwise_affine"] = options.Get<bool>("norm_affine");
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    model::MixerConfig& options = config.mixer;
    ReadFlaHeads(reader, options, /*num_heads=*/4, /*expand_k=*/1, /*expand_v=*/1);
    options.Set("feature_map", reader.String("feature_map", "elementwise_product"));
    for (const char* flag : kFlags) options.Set(flag, reader.Bool(flag, false));
    options.Set("normalise", reader.Bool("norm_feature_map", false));
    options.Set("output_norm", true);
    ReadFlaAffine(reader, options);
  }

  // A feature map that q and k share is one module with two names.
  std::string CopyOf(const std::string& tensor) const override {
    constexpr Renaming kOfKeys[] = {{".feature_map_k.", ".feature_map_q."}};
    std::string original = Renamed(tensor, kOfKeys);
    return original == tensor ? std::string() : original;
  }
};

constexpr int64_t kMaxRotaryDim = 256;  // Limit of fla's rotary kernel.

// fla's RetNet: retention with rotary positions of base 10000, a norm per head and a SiLU gate.
class RetNet : public FlaLayout {
 public:
  RetNet() : FlaLayout({.hidden_ratio = 2}) {}

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    const model::MixerConfig& options = config.mixer;
    if (options.Get<double>("rope_theta") != 10000)
      lines.push_back(Concat("rope_theta is ", options.Get<double>("rope_theta"),
                             ". Only 10000 is supported."));
    const double head_dim = static_cast<double>(config.model_dim) *
                            options.Get<double>("expand_k") /
                            static_cast<double>(options.Get<int64_t>("num_heads"));
    if (head_dim > kMaxRotaryDim)
      lines.push_back(Concat("key width per head is ", head_dim, ". Only up to ", kMaxRotaryDim,
                             " is supported."));
    return lines;
  }

  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteFlaLinear(config.mixer, ActivationNames::kTransformers, json);
    json["use_short_conv"] = false;
    json["conv_size"] = 4;
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    ReadFlaLinear(reader, config.mixer, /*num_heads=*/8, /*expand_k=*/1, /*expand_v=*/2,
                  ActivationNames::kTransformers);
    reader.Ignore({"use_short_conv", "conv_size"});  // The class never passes them to its layer.
  }

  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override {
    return FlaLinearName(parameter, reader);
  }
};

constexpr double kQkNormEps = 1e-5;  // fla's constant. norm_eps does not apply.

// fla's Transformer: softmax attention. It also supports RMSNorm of q and k and a sliding window,
// which llama cannot express.
class Transformer : public Layout {
 public:
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(config, {});
    const model::MixerConfig& options = config.mixer;
    if (options.Get<bool>("out_bias")) lines.emplace_back("out_bias is on");
    if (options.Get<bool>("qk_norm") && options.Get<double>("qk_norm_eps") != kQkNormEps)
      lines.push_back(Concat("qk_norm_eps is ", options.Get<double>("qk_norm_eps"), ". Only ",
                             kQkNormEps, " is supported."));
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
    config.mixer.Set("num_heads", reader.Int("num_heads", 32));
    config.mixer.Set("qk_norm", reader.Bool("qk_norm", false));
    ReadFlaAttention(reader, config.mixer);
    reader.Ignore({"elementwise_affine"});  // The class has no such norm.
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return FlaName(parameter);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeGla() { return std::make_unique<Gla>(); }
std::unique_ptr<Layout> MakeLinearAttn() { return std::make_unique<LinearAttn>(); }
std::unique_ptr<Layout> MakeRetNet() { return std::make_unique<RetNet>(); }
std::unique_ptr<Layout> MakeTransformer() { return std::make_unique<Transformer>(); }

}  // namespace halflife::interop
