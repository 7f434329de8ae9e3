// Bamba of `transformers`: layers of Mamba-2, and some of softmax attention that rotates half of
// each head, each with an MLP.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "interop/layouts/mamba2_hybrid.h"

namespace halflife::interop {
namespace {

constexpr double kRotatedShare = 0.5;

// Reads `attn_layer_indices`, the numbers of the layers with attention. As in the class, numbers
// beyond the last layer have no effect.
std::vector<int64_t> ReadAttentionIndices(ConfigReader& reader, int64_t num_layers) {
  constexpr const char* kKey = "attn_layer_indices";
  const nlohmann::json* indices = reader.Member(kKey);
  std::vector<int64_t> layers;
  if (indices == nullptr) return layers;
  reader.Require(indices->is_array(), kKey,
                 " is not a list. Write the numbers of the layers with "
                 "attention.");
  for (int64_t layer = 0; indices->is_array() && layer < std::min(num_layers, kMaxLayers); ++layer)
    if (std::ranges::find(*indices, nlohmann::json(layer)) != indices->end())
      layers.push_back(layer);
  return layers;
}

class Bamba : public Layout {
 public:
  PositionsKey positions_key() const override { return {.usual = 262144}; }
  bool needs_attention_to_cache() const override { return true; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(
        config, {.positions = RopeScalings(), .mlp_bias = MlpBias::kOption, .checks_mixers = true});
    const HybridMixers mixers = FindHybridMixers(config, lines);
    if (mixers.softmax != nullptr) {
      AddOptionObstacles(*mixers.softmax, config.sizes(),
                         {"num_heads", "num_kv_heads", "head_dim", "qk_norm_eps", "dropout",
                          "rope_theta", "partial_rotary_factor", "qkv_bias", "out_bias"},
                         lines);
      AddAttentionBiasObstacle(*mixers.softmax, lines);
      AddYarnObstacle(config, *mixers.softmax, lines);
      const bool can_rotate =
          RotatedChannels(mixers.softmax->Get<int64_t>("head_dim"), kRotatedShare) > 0;
      if (can_rotate && mixers.softmax->Get<double>("rope_theta") == 0)
        lines.emplace_back("softmax does not rotate q and k");
    }
    if (mixers.mamba2 != nullptr) AddMamba2Obstacles(*mixers.mamba2, config.sizes(), lines);
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    json["hidden_size"] = config.model_dim;
    json["num_hidden_layers"] = config.num_layers;
    json["intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
    json["hidden_act"] = "silu";
    json["rms_norm_eps"] = config.norm.Get<double>("eps");
    json["mlp_bias"] = config.channel_mixer.Get<bool>("bias");
    json["attn_layer_indices"] = LayersWithMixer(config, kSoftmaxMixer);
    std::vector<std::string> none;
    const HybridMixers mixers = FindHybridMixers(config, none);
    if (mixers.softmax != nullptr) {
      WriteHybridSoftmax(*mixers.softmax, json);
      json["attention_bias"] = mixers.softmax->Get<bool>("qkv_bias");
      WriteRope(*mixers.softmax, config.positions, /*has_part=*/true, json);
    }
    WriteExpandedMamba2(mixers.mamba2, config.model_dim, json);
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreHybridKeys(reader);
    // transformers rotates half of a head and ignores this key. The names of the layers follow
    // from attn_layer_indices.
    reader.Ignore({"partial_rotary_factor", "attn_rotary_emb", "layers_block_type", "layer_types"});
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 128000);
    config.model_dim = reader.Int("hidden_size", 4096);
    config.num_layers = reader.Int("num_hidden_layers", 32);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    config.head.tied = reader.Bool("tie_word_embeddings", false);
    config.norm.Set("eps", reader.Double("rms_norm_eps", 1e-5));
    config.channel_mixer.Set("width", reader.Int("intermediate_size", 14336));
    config.channel_mixer.Set("bias", reader.Bool("mlp_bias", false));
    const int64_t inner = ReadExpandedWidth(reader, config.model_dim);
    model::MixerConfig mamba2 = ReadHybridMamba2(reader, inner, "mamba_expand x hidden_size");
    model::MixerConfig softmax =
        ReadHybridSoftmax(reader, config.model_dim, {.num_heads = 32, .num_kv_heads = 8});
    ReadAttentionBias(reader, softmax);
    const PositionsKey positions = positions_key();
    model::PositionsConfig rotation;
    ReadRope(reader,
             {.head_dim = softmax.Get<int64_t>("head_dim"),
              .max_positions = reader.Int(positions.name, positions.usual, /*min=*/0),
              .usual_part = kRotatedShare,
              .ignores_outer_part = true},
             softmax, rotation);
    std::vector<int64_t> with_attention = ReadAttentionIndices(reader, config.num_layers);
    if (!with_attention.empty()) config.positions = rotation;
    SetHybridMixers(std::move(mamba2), std::move(softmax), std::move(with_attention), config);
    return config;
  }

  TensorPlace PlaceOf(const model::ModelConfig& config, const std::string& parameter,
                      ConfigReader*) const override {
    return {.name = FeedForwardName(config, parameter), .placement = {}};
  }
};

}  // namespace

std::unique_ptr<Layout> MakeBamba() { return std::make_unique<Bamba>(); }

}  // namespace halflife::interop
