// The Llama class of `transformers`: softmax attention that can be loaded without fla and its
// kernels.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// Names that differ in more than the prefix.
constexpr Renaming kLlamaNames[] = {
    {"embeddings.", "embed_tokens."},
    {".attn.", ".self_attn."},
    {".attn_norm.", ".input_layernorm."},
    {".mlp_norm.", ".post_attention_layernorm."},
};

class Llama : public Layout {
 public:
  std::string model_type() const override { return "llama"; }
  std::string class_name() const override { return "LlamaForCausalLM"; }
  std::string mixer() const override { return "softmax"; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines =
        PartObstacles(config, {.positions = RopeScalings(), .mlp_bias = MlpBias::kOption});
    const model::MixerConfig& options = config.mixer;
    if (options.Get<bool>("qk_norm")) lines.emplace_back("qk_norm is on");
    if (options.Get<int64_t>("window") > 0)
      lines.emplace_back(Concat("window is ", options.Get<int64_t>("window")));
    if (options.Get<bool>("out_bias") && !options.Get<bool>("qkv_bias"))
      lines.emplace_back("out_bias is on without qkv_bias");
    if (config.model_dim % options.Get<int64_t>("num_heads") != 0)
      lines.emplace_back("num_heads does not divide model_dim, which the class checks");
    if (options.Get<double>("rope_theta") == 0) lines.emplace_back("q and k are not rotated");
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    json["hidden_size"] = config.model_dim;
    json["intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
    json["num_hidden_layers"] = config.num_layers;
    json["num_attention_heads"] = options.Get<int64_t>("num_heads");
    json["num_key_value_heads"] = options.Get<int64_t>("num_kv_heads");
    json["head_dim"] = options.Get<int64_t>("head_dim");
    json["hidden_act"] = "silu";
    json["rms_norm_eps"] = config.norm.Get<double>("eps");
    json["attention_bias"] = options.Get<bool>("qkv_bias");
    json["mlp_bias"] = config.channel_mixer.Get<bool>("bias");
    WriteRope(config, json);
    json["attention_dropout"] = 0.0;
    json["pretraining_tp"] = 1;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    reader.Ignore({"attention_dropout", "pretraining_tp"});
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 32000);
    config.model_dim = reader.Int("hidden_size", 4096);
    config.channel_mixer.Set("width", reader.Int("intermediate_size", 11008));
    config.num_layers = reader.Int("num_hidden_layers", 32);
    config.norm.Set("eps", reader.Double("rms_norm_eps", 1e-6));
    config.head.tied = reader.Bool("tie_word_embeddings", false);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    config.channel_mixer.Set("bias", reader.Bool("mlp_bias", false));
    const std::string activation = reader.String("hidden_act", "silu");
    reader.Require(activation == "silu" || activation == "swish", "hidden_act is '", activation,
                   "'. Only silu is supported.");
    config.mixer = model::MixerConfig(mixer());
    const int64_t heads = reader.Int("num_attention_heads", 32);
    config.mixer.Set("num_heads", heads);
    config.mixer.Set("num_kv_heads", reader.Int("num_key_value_heads", heads));
    config.mixer.Set("head_dim",
                     reader.Int("head_dim", std::max<int64_t>(1, config.model_dim / heads)));
    const bool bias = reader.Bool("attention_bias", false);
    config.mixer.Set("qkv_bias", bias);
    config.mixer.Set("out_bias", bias);
    const PositionsKey positions = positions_key();
    ReadRope(reader,
             {.head_dim = config.mixer.Get<int64_t>("head_dim"),
              .max_positions = reader.Int(positions.name, positions.usual, /*min=*/0)},
             config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return FlaName(Renamed(parameter, kLlamaNames));
  }

  bool IsBuffer(const std::string& tensor, ConfigReader&) const override {
    return tensor.ends_with(".rotary_emb.inv_freq");
  }

  // `attention_bias` applies to q, k, v and o together, so a model without the bias of o gets
  // zeros.
  std::vector<dist::ParamSpec> ZeroTensors(const model::ModelConfig& config) const override {
    const model::MixerConfig& options = config.mixer;
    std::vector<dist::ParamSpec> zeros;
    if (!options.Get<bool>("qkv_bias") || options.Get<bool>("out_bias")) return zeros;
    for (int64_t layer = 0; layer < config.num_layers; ++layer)
      zeros.push_back(
          {.name = Concat("layers.", layer, ".attn.o_proj.bias"), .shape = {config.model_dim}});
    return zeros;
  }
};

}  // namespace

std::unique_ptr<Layout> MakeLlama() { return std::make_unique<Llama>(); }

}  // namespace halflife::interop
