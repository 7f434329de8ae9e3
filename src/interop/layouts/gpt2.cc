// GPT-2 of `transformers`: softmax attention without rotation, a position table, LayerNorm, an MLP,
// and biases in all layers. Its matrices are [in, out]; those of q, k and v are adjacent columns of
// one matrix.
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// Writes `gelu_new`, the name that other readers of this class expect.
std::string ActivationOf(const model::ModelConfig& config) {
  const auto name = config.channel_mixer.Get<std::string>("activation");
  return name == "gelu_tanh" ? "gelu_new" : WrittenActivation(name);
}

class Gpt2 : public Layout {
 public:
  std::string model_type() const override { return "gpt2"; }
  std::string class_name() const override { return "GPT2LMHeadModel"; }
  std::string mixer() const override { return "softmax"; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(config, {.norm = "layer_norm",
                                                            .channel_mixer = "mlp",
                                                            .positions = "learned",
                                                            .mlp_bias = MlpBias::kOn});
    const auto require = [&](bool condition, const auto&... pieces) {
      if (!condition) lines.push_back(Concat(pieces...));
    };
    const model::MixerConfig& options = config.mixer;
    const auto num_heads = options.Get<int64_t>("num_heads");
    const auto num_kv_heads = options.Get<int64_t>("num_kv_heads");
    const auto window = options.Get<int64_t>("window");
    const auto rope_theta = options.Get<double>("rope_theta");
    require(options.Get<bool>("qkv_bias"), "qkv_bias is off");
    require(options.Get<bool>("out_bias"), "out_bias is off");
    require(!options.Get<bool>("qk_norm"), "qk_norm is on");
    require(window == 0, "window is ", window);
    require(rope_theta == 0, "rope_theta is ", rope_theta, ". Only 0 is supported.");
    require(num_kv_heads == num_heads, "num_kv_heads is ", num_kv_heads,
            ". Only num_heads is supported.");
    require(options.Get<int64_t>("head_dim") * num_heads == config.model_dim,
            "head_dim is not model_dim / num_heads");
    require(config.hybrid.empty(), "the model has hybrid layers");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    json["n_positions"] = config.positions.Get<int64_t>("max_positions");
    json["n_embd"] = config.model_dim;
    json["n_layer"] = config.num_layers;
    json["n_head"] = config.mixer.Get<int64_t>("num_heads");
    json["n_inner"] = config.channel_mixer.Get<int64_t>("width");
    json["activation_function"] = ActivationOf(config);
    json["layer_norm_epsilon"] = config.norm.Get<double>("eps");
    json["embd_pdrop"] = config.dropout;
    json["resid_pdrop"] = config.dropout;
    json["attn_pdrop"] = 0.0;
    json["scale_attn_weights"] = true;
    json["scale_attn_by_inverse_layer_idx"] = false;
    json["reorder_and_upcast_attn"] = false;
    json["add_cross_attention"] = false;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    const auto require = [&](const char* key, bool value) {
      reader.Require(reader.Bool(key, value) == value, key, " is ", value ? "false" : "true",
                     ". Only ", value ? "true" : "false", " is supported.");
    };
    require("scale_attn_weights", true);
    require("scale_attn_by_inverse_layer_idx", false);
    model::ModelConfig config = ReadGpt2Frame(reader);
    config.block.Set("scale_init_by_depth", true);
    ReadGpt2Mlp(reader, config);
    config.mixer =
        model::MixerConfig(mixer(), {{"qkv_bias", true}, {"out_bias", true}, {"rope_theta", 0}});
    config.mixer.Set("num_heads", ReadGpt2Heads(reader));
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return Gpt2Name(parameter);
  }
  Placement PlacementOf(const std::string& parameter, ConfigReader*) const override {
    return Gpt2Placement(parameter);
  }
  std::string OptionalPrefix() const override { return kGpt2Prefix; }
  bool IsBuffer(const std::string& tensor, ConfigReader&) const override {
    return IsGpt2Mask(tensor);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeGpt2() { return std::make_unique<Gpt2>(); }

}  // namespace halflife::interop
