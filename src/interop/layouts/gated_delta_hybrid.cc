#include "interop/layouts/gated_delta_hybrid.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace halflife::interop {
namespace {

constexpr const char* kFullAttention = "full_attention";
constexpr const char* kLinearAttention = "linear_attention";

}  // namespace

bool IsFullLayer(const model::ModelConfig& config, int64_t layer) {
  return config.mixer_of(layer).name() == "softmax";
}

bool GatedDeltaHybrid::IsBuffer(const std::string& tensor, ConfigReader&) const {
  return tensor.ends_with("rotary_emb.inv_freq");
}

std::vector<dist::ParamSpec> GatedDeltaHybrid::ZeroTensors(const model::ModelConfig& config) const {
  std::vector<dist::ParamSpec> biases;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const model::MixerConfig& mixer = config.mixer_of(layer);
    if (!IsFullLayer(config, layer) || !mixer.Get<bool>("qkv_bias") || mixer.Get<bool>("out_bias"))
      continue;
    biases.push_back(
        {.name = Concat("layers.", layer, ".attn.o_proj.bias"), .shape = {config.model_dim}});
  }
  return biases;
}

model::ModelConfig GatedDeltaHybrid::ReadSizes(ConfigReader& reader, const Defaults& defaults) {
  IgnoreCommonKeys(reader);
  reader.Ignore({"attention_dropout"});
  model::ModelConfig config;
  config.vocab_size = reader.Int("vocab_size", defaults.vocab_size);
  config.model_dim = reader.Int("hidden_size", defaults.hidden_size);
  config.channel_mixer.Set("width", reader.Int("intermediate_size", defaults.intermediate_size));
  config.num_layers = reader.Int("num_hidden_layers", defaults.num_layers);
  config.norm.Set("eps", reader.Double("rms_norm_eps", 1e-6));
  config.head.tied = reader.Bool("tie_word_embeddings", false);
  config.initializer_range = reader.Double("initializer_range", 0.02);
  RequireSwish(reader, "silu");
  return config;
}

std::vector<int64_t> GatedDeltaHybrid::ReadFullLayers(
    ConfigReader& reader, int64_t num_layers, const std::function<bool(int64_t layer)>& is_full) {
  if (auto listed = ReadLayersOfType(reader, "layer_types", num_layers,
                                     {.other = {kLinearAttention}, .wanted = {kFullAttention}}))
    return *listed;
  std::vector<int64_t> full;
  for (int64_t layer = 0; layer < std::min(num_layers, kMaxLayers); ++layer)
    if (is_full(layer)) full.push_back(layer);
  return full;
}

model::MixerConfig GatedDeltaHybrid::ReadDelta(ConfigReader& reader, const DeltaSizes& defaults) {
  const auto head_dim = reader.Int("linear_key_head_dim", defaults.head_dim_k);
  const auto head_dim_v = reader.Int("linear_value_head_dim",
                                     defaults.head_dim_v > 0 ? defaults.head_dim_v : 2 * head_dim);
  return model::MixerConfig(
      "gated_delta_net",
      {{"num_heads", reader.Int("linear_num_key_heads", defaults.num_heads)},
       {"num_v_heads", reader.Int("linear_num_value_heads", defaults.num_v_heads)},
       {"head_dim", head_dim},
       {"expand_v", static_cast<double>(head_dim_v) / static_cast<double>(head_dim)},
       {"conv_size", reader.Int("linear_conv_kernel_dim", 4)}});
}

void GatedDeltaHybrid::WriteSizes(const model::ModelConfig& config, nlohmann::ordered_json& json) {
  json["hidden_size"] = config.model_dim;
  json["intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
  json["num_hidden_layers"] = config.num_layers;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm.Get<double>("eps");
  const model::MixerConfig& delta = config.mixer;
  const auto head_dim = delta.Get<int64_t>("head_dim");
  json["linear_num_key_heads"] = delta.Get<int64_t>("num_heads");
  json["linear_num_value_heads"] = delta.Get<int64_t>("num_v_heads");
  json["linear_key_head_dim"] = head_dim;
  json["linear_value_head_dim"] =
      std::llround(static_cast<double>(head_dim) * delta.Get<double>("expand_v"));
  json["linear_conv_kernel_dim"] = delta.Get<int64_t>("conv_size");
  json["attention_dropout"] = 0.0;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    types.push_back(IsFullLayer(config, layer) ? kFullAttention : kLinearAttention);
  json["layer_types"] = std::move(types);
}

model::MixerConfig GatedDeltaHybrid::AttentionOf(const model::ModelConfig& config,
                                                 const model::MixerConfig& absent) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    if (IsFullLayer(config, layer)) return config.mixer_of(layer);
  model::MixerConfig resolved = absent;
  resolved.Resolve(config.sizes());
  return resolved;
}

std::vector<std::string> GatedDeltaHybrid::LayerObstacles(const model::ModelConfig& config) {
  std::vector<std::string> lines;
  const model::MixerConfig attention = AttentionOf(config, model::MixerConfig("softmax"));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const model::MixerConfig& mixer = config.mixer_of(layer);
    if (mixer.name() != "softmax" && mixer.name() != config.mixer.name()) {
      lines.push_back(Concat("layer ", layer, " has the mixer ", mixer.name(), ". Only ",
                             config.mixer.name(), " and softmax are supported."));
    } else if (!(mixer == (mixer.name() == "softmax" ? attention : config.mixer))) {
      lines.push_back(Concat("the options of layer ", layer, ", ", mixer.name(),
                             ", differ from those of other layers with this mixer"));
    }
  }
  RequireOptions("", config.mixer, {{"use_short_conv", true}, {"output_gate", "silu"}}, lines);
  const bool biased = attention.Get<bool>("qkv_bias") || !attention.Get<bool>("out_bias");
  if (!biased) lines.emplace_back("out_bias of the softmax layers is on without qkv_bias");
  AddYarnObstacle(config, attention, lines);
  return lines;
}

void GatedDeltaHybrid::RequireOptions(const char* where, const model::MixerConfig& mixer,
                                      const std::vector<model::Assignment>& required,
                                      std::vector<std::string>& lines) {
  const std::vector<model::Assignment> values = mixer.Values();
  for (const auto& [name, wanted] : required) {
    const model::OptionValue& value =
        std::ranges::find(values, name, &model::Assignment::name)->value;
    if (value != wanted)
      lines.push_back(Concat(where, name, " is ", model::Text(value), ". Only ",
                             model::Text(wanted), " is supported."));
  }
}

}  // namespace halflife::interop
