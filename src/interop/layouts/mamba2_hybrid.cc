#include "interop/layouts/mamba2_hybrid.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "interop/layouts/layouts.h"
#include "model/mixers/parallel.h"

namespace halflife::interop {

void AddOptionObstacles(const model::PartConfig& part, const model::ModelSizes& sizes,
                        std::initializer_list<const char*> expressed,
                        std::vector<std::string>& lines) {
  model::PartConfig usual(part.kind(), part.name());
  const std::vector<model::Assignment> values = part.Values();
  const auto is_expressed = [&](const model::Assignment& option) {
    return std::ranges::find(expressed, option.name) != expressed.end();
  };
  for (const model::Assignment& option : values)
    if (is_expressed(option)) usual.Set(option.name, option.value);
  usual.Resolve(sizes);
  const std::vector<model::Assignment> defaults = usual.Values();
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].value != defaults[i].value)
      lines.push_back(Concat(values[i].name, " of ", part.name(), " is ",
                             model::Text(values[i].value), ". Only ",
                             model::Text(defaults[i].value), " is supported."));
}

std::vector<int64_t> LayersWithMixer(const model::ModelConfig& config, const std::string& mixer) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    if (config.mixer_of(layer).name() == mixer) layers.push_back(layer);
  return layers;
}

HybridMixers FindHybridMixers(const model::ModelConfig& config, std::vector<std::string>& lines) {
  HybridMixers found;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const model::MixerConfig& mixer = config.mixer_of(layer);
    const bool is_mamba2 = mixer.name() == kMamba2Mixer;
    if (!is_mamba2 && mixer.name() != kSoftmaxMixer) {
      lines.push_back(Concat("layer ", layer, " has the mixer ", mixer.name(),
                             ". Only mamba2 and softmax are supported."));
      continue;
    }
    const model::MixerConfig*& first = is_mamba2 ? found.mamba2 : found.softmax;
    if (first == nullptr) first = &mixer;
    if (!(*first == mixer))
      lines.push_back(Concat("layer ", layer, " has other options of ", mixer.name(),
                             " than an earlier layer. Use the same options in all layers."));
  }
  return found;
}

namespace {

// Sizes that every model width allows.
model::MixerConfig UnusedMamba2(int64_t model_dim) {
  const int64_t head_dim = std::gcd(model_dim, 64);
  return model::MixerConfig("mamba2",
                            {{"num_heads", model_dim / head_dim}, {"head_dim", head_dim}});
}

}  // namespace

void SetHybridMixers(model::MixerConfig mamba2, model::MixerConfig softmax,
                     std::vector<int64_t> softmax_layers, model::ModelConfig& config) {
  // If no layer has Mamba-2, the class ignores the sizes that config.json has for it. halflife may
  // not support them, so it uses others.
  const bool is_used = std::ssize(softmax_layers) < config.num_layers;
  config.mixer = is_used ? std::move(mamba2) : UnusedMamba2(config.model_dim);
  if (softmax_layers.empty()) return;
  config.hybrid.push_back({.layers = std::move(softmax_layers), .mixer = std::move(softmax)});
}

model::MixerConfig ReadHybridSoftmax(ConfigReader& reader, int64_t model_dim,
                                     const AttentionDefaults& defaults) {
  reader.Ignore({"attention_dropout"});
  const int64_t heads = reader.Int("num_attention_heads", defaults.num_heads);
  const bool ungrouped = defaults.num_kv_heads == 0 || reader.IsNull("num_key_value_heads");
  const int64_t head_dim =
      defaults.head_dim > 0 ? defaults.head_dim : std::max<int64_t>(1, model_dim / heads);
  return model::MixerConfig(
      kSoftmaxMixer, {{"num_heads", heads},
                      {"num_kv_heads", reader.Int("num_key_value_heads",
                                                  ungrouped ? heads : defaults.num_kv_heads)},
                      {"head_dim", reader.Int("head_dim", head_dim)},
                      {"rope_theta", 0}});
}

void WriteHybridSoftmax(const model::MixerConfig& softmax, nlohmann::ordered_json& json) {
  json["num_attention_heads"] = softmax.Get<int64_t>("num_heads");
  json["num_key_value_heads"] = softmax.Get<int64_t>("num_kv_heads");
  json["head_dim"] = softmax.Get<int64_t>("head_dim");
  json["attention_dropout"] = 0.0;
}

namespace {

// Returns the width of a head: a number, or "auto" for an equal share of the inner width.
int64_t ReadHeadDim(ConfigReader& reader, int64_t inner_width, int64_t num_heads) {
  constexpr const char* kKey = "mamba_d_head";
  const nlohmann::json* value = reader.Member(kKey);
  const bool is_auto = value == nullptr || *value == "auto";
  return is_auto ? std::max<int64_t>(1, inner_width / num_heads) : reader.Int(kKey, 1);
}

int64_t WidthOfHeads(const model::MixerConfig& mamba2) {
  return mamba2.Get<int64_t>("num_heads") * mamba2.Get<int64_t>("head_dim");
}

}  // namespace

model::MixerConfig ReadHybridMamba2(ConfigReader& reader, int64_t inner_width,
                                    const std::string& name_of_width) {
  RequireSwish(reader, "silu");
  const int64_t num_heads = reader.Int("mamba_n_heads", 128);
  const int64_t head_dim = ReadHeadDim(reader, inner_width, num_heads);
  reader.Require(num_heads * head_dim == inner_width, "mamba_n_heads x mamba_d_head is ",
                 num_heads * head_dim, ". Only ", name_of_width, ", ", inner_width,
                 ", is supported.");
  model::MixerConfig mixer(kMamba2Mixer, {{"num_heads", num_heads},
                                          {"head_dim", head_dim},
                                          {"state_size", reader.Int("mamba_d_state", 256)},
                                          {"num_groups", reader.Int("mamba_n_groups", 1)},
                                          {"conv_kernel", reader.Int("mamba_d_conv", 4)},
                                          {"use_bias", reader.Bool("mamba_proj_bias", false)},
                                          {"use_conv_bias", reader.Bool("mamba_conv_bias", true)},
                                          {"a_init", std::string("heads")}});
  SetStepLimits(ReadStepLimits(reader, "time_step_limit"), mixer);
  return mixer;
}

void WriteHybridMamba2(const model::MixerConfig& mamba2, nlohmann::ordered_json& json) {
  json["mamba_n_heads"] = mamba2.Get<int64_t>("num_heads");
  json["mamba_d_head"] = mamba2.Get<int64_t>("head_dim");
  json["mamba_d_state"] = mamba2.Get<int64_t>("state_size");
  json["mamba_n_groups"] = mamba2.Get<int64_t>("num_groups");
  json["mamba_d_conv"] = mamba2.Get<int64_t>("conv_kernel");
  json["mamba_conv_bias"] = mamba2.Get<bool>("use_conv_bias");
  json["mamba_proj_bias"] = mamba2.Get<bool>("use_bias");
  json["mamba_chunk_size"] = 256;
  WriteStepLimits(StepLimitsOf(mamba2), {"time_step_limit"}, json);
}

int64_t ReadExpandedWidth(ConfigReader& reader, int64_t model_dim) {
  return reader.Int("mamba_expand", 2) * model_dim;
}

void AddMamba2Obstacles(const model::MixerConfig& mamba2, const model::ModelSizes& sizes,
                        std::vector<std::string>& lines) {
  AddOptionObstacles(mamba2, sizes,
                     {"num_heads", "head_dim", "state_size", "num_groups", "conv_kernel",
                      "use_bias", "use_conv_bias", "dt_limit_min", "dt_limit_max", "a_init"},
                     lines);
  const int64_t inner = WidthOfHeads(mamba2);
  if (inner % sizes.model_dim != 0)
    lines.push_back(Concat("num_heads x head_dim of mamba2 is ", inner,
                           ". Only multiples of model_dim, ", sizes.model_dim, ", are supported."));
}

void WriteExpandedMamba2(const model::MixerConfig* mamba2, int64_t model_dim,
                         nlohmann::ordered_json& json) {
  if (mamba2 != nullptr) {
    WriteHybridMamba2(*mamba2, json);
    json["mamba_expand"] = WidthOfHeads(*mamba2) / model_dim;
    return;
  }
  WriteHybridMamba2(UnusedMamba2(model_dim), json);
  json["mamba_expand"] = 1;
}

double ReadPositiveFactor(ConfigReader& reader, const char* key) {
  const double factor = reader.Double(key, 1);
  reader.Require(factor > 0, key, " is ", factor, ". Use a number above 0.");
  return factor > 0 ? factor : 1;
}

void ReadAttentionBias(ConfigReader& reader, model::MixerConfig& softmax) {
  const bool bias = reader.Bool("attention_bias", false);
  softmax.Set("qkv_bias", bias);
  softmax.Set("out_bias", bias);
}

void AddAttentionBiasObstacle(const model::MixerConfig& softmax, std::vector<std::string>& lines) {
  if (softmax.Get<bool>("qkv_bias") != softmax.Get<bool>("out_bias"))
    lines.emplace_back("qkv_bias and out_bias of softmax differ. Use the same value for both.");
}

void IgnoreHybridKeys(ConfigReader& reader) {
  IgnoreCommonKeys(reader);
  reader.Ignore({"mamba_chunk_size", "num_logits_to_keep", "max_position_embeddings",
                 "attention_dropout", "z_loss_coefficient", "layer_norm_epsilon",
                 "use_mamba_kernels", "router_aux_loss_coef", "output_router_logits",
                 "num_experts_per_tok", "time_step_min", "time_step_max", "time_step_floor",
                 "residual_in_fp32", "rescale_prenorm_residual"});
}

std::string HybridName(const model::ModelConfig& config, const std::string& parameter,
                       std::span<const Renaming> renamings) {
  const auto [layer, of_layer, of_mixer] = ParseLayerParameter(parameter);
  if (of_mixer.empty()) return FlaName(Renamed(parameter, renamings));
  const model::MixerConfig* mixer = &config.mixer_of(layer);
  std::string inside = of_mixer;
  if (mixer->name() == "parallel") {
    size_t digits = 0;
    mixer = &model::PartsOfParallel(*mixer).at(std::stoull(inside, &digits)).mixer;
    inside = inside.substr(digits + 1);
  }
  const char* name = mixer->name() == kMamba2Mixer ? ".mamba." : ".self_attn.";
  return FlaName(Concat("layers.", layer, name, inside));
}

std::string FeedForwardName(const model::ModelConfig& config, const std::string& parameter) {
  constexpr Renaming kNames[] = {{"embeddings.", "embed_tokens."},
                                 {".attn_norm.", ".input_layernorm."},
                                 {".mlp_norm.", ".pre_ff_layernorm."},
                                 {".mlp.", ".feed_forward."}};
  if (parameter == "norm.weight") return "model.final_layernorm.weight";
  return HybridName(config, parameter, kNames);
}

}  // namespace halflife::interop
