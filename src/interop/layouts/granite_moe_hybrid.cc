// The dense GraniteMoeHybrid models of `transformers`: layers of Mamba-2 or softmax attention, each
// with an MLP, and factors of the embedding, of the branches, of the scores and of the logits.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "interop/layouts/mamba2_hybrid.h"

namespace halflife::interop {
namespace {

constexpr const char* kLinearLayer = "linear_attention";
constexpr const char* kFullLayer = "full_attention";

// Reads `layer_types`, or `layers_block_type` of older folders. Returns the numbers of the layers
// with attention. Without the key, all layers have Mamba-2.
std::vector<int64_t> ReadAttentionLayers(ConfigReader& reader, int64_t num_layers) {
  const char* key = reader.Has("layer_types") ? "layer_types" : "layers_block_type";
  reader.Ignore({"layer_types", "layers_block_type"});
  return ReadLayersOfType(reader, key, num_layers,
                          {.other = {kLinearLayer}, .wanted = {kFullLayer}})
      .value_or(std::vector<int64_t>());
}

// Returns the shortest number whose inverse is `scale`, so that import and export of a folder agree
// in every bit. If there is none, 1 / scale.
double DivisorFor(double scale) {
  for (int digits = 1; digits <= 17; ++digits) {
    char text[40];
    std::snprintf(text, sizeof text, "%.*g", digits, 1 / scale);
    if (const double divisor = std::stod(text); 1 / divisor == scale) return divisor;
  }
  return 1 / scale;
}

double ScoreScale(const model::MixerConfig& softmax) {
  const auto scale = softmax.Get<double>("score_scale");
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(softmax.Get<int64_t>("head_dim")));
}

class GraniteMoeHybrid : public Layout {
 public:
  bool loads_byt5() const override { return false; }
  bool needs_attention_to_cache() const override { return true; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(config, {.positions = RopeScalings(),
                                                            .checks_mixers = true,
                                                            .embedding_scale = true,
                                                            .residual_multiplier = true,
                                                            .logit_scale = true});
    const HybridMixers mixers = FindHybridMixers(config, lines);
    if (mixers.softmax != nullptr) {
      AddOptionObstacles(*mixers.softmax, config.sizes(),
                         {"num_heads", "num_kv_heads", "head_dim", "qk_norm_eps", "dropout",
                          "rope_theta", "score_scale", "qkv_bias", "out_bias"},
                         lines);
      AddAttentionBiasObstacle(*mixers.softmax, lines);
      AddYarnObstacle(config, *mixers.softmax, lines);
    }
    if (mixers.mamba2 != nullptr) AddMamba2Obstacles(*mixers.mamba2, config.sizes(), lines);
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    json["hidden_size"] = config.model_dim;
    json["num_hidden_layers"] = config.num_layers;
    json["hidden_act"] = "silu";
    json["rms_norm_eps"] = config.norm.Get<double>("eps");
    json["shared_intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
    json["num_local_experts"] = 0;
    json["num_experts_per_tok"] = 0;
    json["embedding_multiplier"] = config.embedding.scale;
    json["residual_multiplier"] = config.block.Get<double>("residual_multiplier");
    json["logits_scaling"] = DivisorFor(config.head.logit_scale);
    nlohmann::ordered_json types = nlohmann::ordered_json::array();
    for (int64_t layer = 0; layer < config.num_layers; ++layer)
      types.push_back(config.mixer_of(layer).name() == kMamba2Mixer ? kLinearLayer : kFullLayer);
    json["layer_types"] = types;
    std::vector<std::string> none;
    const HybridMixers mixers = FindHybridMixers(config, none);
    if (mixers.softmax != nullptr) WriteAttention(*mixers.softmax, config.positions, json);
    WriteExpandedMamba2(mixers.mamba2, config.model_dim, json);
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreHybridKeys(reader);
    reader.Ignore({"intermediate_size", "normalization_function", "init_method"});
    RequireNoExperts(reader);
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 32000);
    config.model_dim = reader.Int("hidden_size", 4096);
    config.num_layers = reader.Int("num_hidden_layers", 32);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    config.head.tied = reader.Bool("tie_word_embeddings", false);
    config.norm.Set("eps", reader.Double("rms_norm_eps", 1e-6));
    config.channel_mixer.Set("width", reader.Int("shared_intermediate_size", 1024));
    config.embedding.scale = ReadPositiveFactor(reader, "embedding_multiplier");
    config.head.logit_scale = 1 / ReadPositiveFactor(reader, "logits_scaling");
    config.block.Set("residual_multiplier", ReadPositiveFactor(reader, "residual_multiplier"));
    const int64_t inner = ReadExpandedWidth(reader, config.model_dim);
    model::PositionsConfig rotation;
    model::MixerConfig mamba2 = ReadHybridMamba2(reader, inner, "mamba_expand x hidden_size"),
                       softmax = ReadAttention(reader, config.model_dim, rotation);
    std::vector<int64_t> with_attention = ReadAttentionLayers(reader, config.num_layers);
    if (!with_attention.empty()) config.positions = std::move(rotation);
    SetHybridMixers(std::move(mamba2), std::move(softmax), std::move(with_attention), config);
    return config;
  }

  TensorPlace PlaceOf(const model::ModelConfig& config, const std::string& parameter,
                      ConfigReader*) const override {
    constexpr Renaming kNames[] = {{"embeddings.", "embed_tokens."},
                                   {".attn_norm.", ".input_layernorm."},
                                   {".mlp_norm.", ".post_attention_layernorm."},
                                   {".mlp.gate_proj.", ".shared_mlp.input_linear."},
                                   {".mlp.up_proj.", ".shared_mlp.input_linear."},
                                   {".mlp.down_proj.", ".shared_mlp.output_linear."}};
    const bool is_gate = parameter.find(".mlp.gate_proj.") != std::string::npos,
               is_up = parameter.find(".mlp.up_proj.") != std::string::npos;
    Placement placement;
    if (is_gate || is_up) placement = {.part = is_up ? 1 : 0, .num_parts = 2};
    return {.name = HybridName(config, parameter, kNames), .placement = placement};
  }

 private:
  static void RequireNoExperts(ConfigReader& reader) {
    const int64_t experts = reader.Int("num_local_experts", 8, /*min=*/0);
    reader.Require(experts == 0, "num_local_experts is ", experts,
                   ". Use a model without experts (num_local_experts 0).");
  }

  static model::MixerConfig ReadAttention(ConfigReader& reader, int64_t model_dim,
                                          model::PositionsConfig& rotation) {
    model::MixerConfig softmax =
        ReadHybridSoftmax(reader, model_dim, {.num_heads = 32, .num_kv_heads = 0});
    ReadAttentionBias(reader, softmax);
    // null means 1 / sqrt(head_dim), as it does to PyTorch's attention.
    if (!reader.IsNull("attention_multiplier"))
      softmax.Set("score_scale", ReadPositiveFactor(reader, "attention_multiplier"));
    if (reader.String("position_embedding_type", "") == "rope") {
      ReadRope(reader,
               {.head_dim = softmax.Get<int64_t>("head_dim"),
                .max_positions = reader.Int("max_position_embeddings", 2048, /*min=*/0)},
               softmax, rotation);
    } else {
      reader.Ignore({"rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor"});
    }
    return softmax;
  }

  static void WriteAttention(const model::MixerConfig& softmax,
                             const model::PositionsConfig& positions,
                             nlohmann::ordered_json& json) {
    WriteHybridSoftmax(softmax, json);
    json["attention_bias"] = softmax.Get<bool>("qkv_bias");
    json["attention_multiplier"] = ScoreScale(softmax);
    const bool rotates = softmax.Get<double>("rope_theta") > 0;
    json["position_embedding_type"] = rotates ? "rope" : "nope";
    if (rotates) WriteRope(softmax, positions, /*has_part=*/false, json);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeGraniteMoeHybrid() { return std::make_unique<GraniteMoeHybrid>(); }

}  // namespace halflife::interop
