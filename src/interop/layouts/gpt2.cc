// GPT-2 of `transformers`: softmax attention without rotation, a position table, LayerNorm, an MLP,
// and biases in all layers. Its matrices are [in, out]; those of q, k and v are adjacent columns of
// one matrix. The functions of layouts.h for classes that are derived from it are also here: sizes,
// LayerNorm, ties, names, and transposed matrices.
#include <array>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

constexpr const char* kGpt2Head = "lm_head.weight";

constexpr Renaming kGpt2Names[] = {
    {"embeddings.", "wte."},
    {"positions.", "wpe."},
    {"layers.", "h."},
    {".attn_norm.", ".ln_1."},
    // After the layers' norms, whose names end in it.
    {".mlp_norm.", ".ln_2."},
    {"norm.", "ln_f."},
    {".q_proj.", ".c_attn."},
    {".k_proj.", ".c_attn."},
    {".v_proj.", ".c_attn."},
    {".o_proj.", ".c_proj."},
    {".up_proj.", ".c_fc."},
    {".down_proj.", ".c_proj."},
};
constexpr std::array<const char*, 3> kSideBySide = {".q_proj.", ".k_proj.", ".v_proj."};

// Reads a size under the class's own key, or under the key that all classes of `transformers`
// support.
int64_t ReadSize(ConfigReader& reader, const char* key, const char* alias, int64_t absent) {
  const int64_t own = reader.Int(key, absent), other = reader.Int(alias, own);
  reader.Require(!reader.Has(key) || own == other, key, " is ", own, ", but ", alias,
                 ", which means the same, is ", other);
  return other;
}

}  // namespace

model::ModelConfig ReadGpt2Frame(ConfigReader& reader) {
  IgnoreCommonKeys(reader);
  // The precision of scores, dropout of attention weights, an old name of n_positions, heads other
  // than the language model's, and memory options of training.
  reader.Ignore({"reorder_and_upcast_attn", "attn_pdrop", "n_ctx", "summary_activation",
                 "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                 "summary_use_proj", "task_specific_params", "gradient_checkpointing"});
  reader.Require(!reader.Bool("add_cross_attention", false),
                 "add_cross_attention is true. Only false is supported.");
  model::ModelConfig config;
  config.vocab_size = reader.Int("vocab_size", 50257);
  config.model_dim = ReadGpt2Width(reader);
  config.num_layers = ReadSize(reader, "n_layer", "num_hidden_layers", 12);
  // halflife has one dropout rate for both embeddings and branches. If they differ, the rate of the
  // branches is used.
  config.dropout = reader.Double("resid_pdrop", 0.1);
  reader.Ignore({"embd_pdrop"});
  config.initializer_range = reader.Double("initializer_range", 0.02);
  config.head.tied = reader.Bool("tie_word_embeddings", true);
  config.norm = model::NormConfig("layer_norm");
  config.norm.Set("eps", reader.Double("layer_norm_epsilon", 1e-5));
  return config;
}

void ReadGpt2Mlp(ConfigReader& reader, model::ModelConfig& config) {
  config.positions = model::PositionsConfig("learned");
  config.positions.Set("max_positions",
                       ReadSize(reader, "n_positions", "max_position_embeddings", 1024));
  config.channel_mixer = model::ChannelMixerConfig("mlp", {{"bias", true}});
  config.channel_mixer.Set("width", reader.Int("n_inner", 4 * config.model_dim));
  config.channel_mixer.Set("activation", ReadActivation(reader, "activation_function", "gelu_new"));
}

int64_t ReadGpt2Width(ConfigReader& reader) {
  return ReadSize(reader, "n_embd", "hidden_size", 768);
}

int64_t ReadGpt2Heads(ConfigReader& reader) {
  return ReadSize(reader, "n_head", "num_attention_heads", 12);
}

std::string Gpt2Name(const std::string& parameter) {
  return parameter == kGpt2Head ? parameter : kGpt2Prefix + Renamed(parameter, kGpt2Names);
}

Placement Gpt2Placement(const std::string& parameter) {
  Placement placement;
  placement.transposed = parameter.ends_with("_proj.weight");
  for (size_t i = 0; i < kSideBySide.size(); ++i)
    if (parameter.find(kSideBySide[i]) != std::string::npos)
      placement.part = static_cast<int64_t>(i), placement.num_parts = kSideBySide.size();
  return placement;
}

bool IsGpt2Mask(const std::string& tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
}

namespace {

// Writes `gelu_new`, the name that other readers of this class expect.
std::string ActivationOf(const model::ModelConfig& config) {
  const auto name = config.channel_mixer.Get<std::string>("activation");
  return name == "gelu_tanh" ? "gelu_new" : WrittenActivation(name);
}

class Gpt2 : public Layout {
 public:
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(config, {.norm = "layer_norm",
                                                            .channel_mixer = "mlp",
                                                            .positions = {"learned"},
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
