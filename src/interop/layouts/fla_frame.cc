// Shared parts of fla's classes: sizes, the SwiGLU block, ties and hybrid softmax layers.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "interop/hf_folder.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kUsualConvSize = 4;  // Default of the classes.
constexpr double kRatioOfNull = 4;     // hidden_ratio of fla's MLP if the key is null.

// Reads one entry of `attn`.
void ReadHybridEntry(ConfigReader& reader, const nlohmann::json& entry,
                     model::ModelConfig& config) {
  if (!entry.is_object()) return reader.Require(false, "attn has an entry that is not an object");
  ConfigReader inner(entry, reader.where() + ", attn");
  model::LayerGroup& group = config.hybrid.emplace_back();
  const nlohmann::json* layers = inner.Member("layers");
  const bool valid = layers != nullptr && layers->is_array() &&
                     std::ranges::all_of(*layers, [&](const nlohmann::json& layer) {
                       return layer.is_number_integer() && layer >= 0 && layer < config.num_layers;
                     });
  inner.Require(valid, "layers must be numbers from 0 to ", config.num_layers - 1);
  if (valid) group.layers = layers->get<std::vector<int64_t>>();
  model::MixerConfig& mixer = group.mixer.emplace("softmax");
  inner.Require(inner.Has("num_heads"), "num_heads is missing");
  const int64_t heads = inner.Int("num_heads", 1);
  mixer.Set("num_heads", heads);
  ReadFlaAttention(inner, mixer);
  inner.Check();
  if (valid && group.layers.empty()) config.hybrid.pop_back();
}

// Adds obstacles for attention options that no public class supports.
void AddAttentionObstacles(const model::MixerConfig& mixer, const std::vector<std::string>& but_not,
                           std::vector<std::string>& lines) {
  if (mixer.name() != "softmax") return;
  const model::MixerConfig usual("softmax");
  for (const char* option :
       {"block", "sinks", "cos_scale", "query_scale", "qk_norm_zero_centered", "qk_norm_over",
        "output_gate", "partial_rotary_factor", "score_scale", "key_multiplier"}) {
    const auto value_of = [&](const model::MixerConfig& config) {
      const std::vector<model::Assignment> values = config.Values();
      return model::Text(std::ranges::find(values, option, &model::Assignment::name)->value);
    };
    const bool checked = std::ranges::find(but_not, option) == but_not.end();
    if (checked && value_of(mixer) != value_of(usual))
      lines.push_back(
          Concat(option, " is ", value_of(mixer), ". Only ", value_of(usual), " is supported."));
  }
}

}  // namespace

std::vector<std::string> PartObstacles(const model::ModelConfig& config, const ClassParts& parts) {
  std::vector<std::string> lines;
  const auto require = [&](bool condition, const auto&... pieces) {
    if (!condition) lines.push_back(Concat(pieces...));
  };
  const auto one_of = [&](const model::PartConfig& part, const std::vector<std::string>& names) {
    const bool found = std::ranges::find(names, part.name()) != names.end();
    require(found, "the ", part.kind().name, " is ", part.name(), ". Only ", Join(names, ", "),
            names.size() == 1 ? " is" : " are", " supported.");
    return found;
  };
  const auto same = [&](const model::PartConfig& part, const std::string& name) {
    return one_of(part, {name});
  };
  if (same(config.block, "pre_norm")) {
    require(!config.block.Get<bool>("mixer_residual_post_norm"),
            "mixer_residual_post_norm of the block is on");
    require(parts.residual_multiplier || config.block.Get<double>("residual_multiplier") == 1,
            "residual_multiplier of the block is ",
            config.block.Get<double>("residual_multiplier"));
    require(config.block.Get<double>("norm_eps") == 0, "norm_eps of the block is ",
            config.block.Get<double>("norm_eps"));
  }
  require(!config.final_norm, "the model has a separate final_norm");
  if (same(config.norm, parts.norm)) {
    for (const char* option : {"weight", "bias"})
      require(!config.norm.Has(option) || config.norm.Get<bool>(option), "the norm has no ",
              option);
    const bool centered =
        config.norm.Has("zero_centered") && config.norm.Get<bool>("zero_centered");
    require(centered == parts.zero_centered_norm, "the norm is ", centered ? "" : "not ",
            "zero_centered");
  }
  if (same(config.channel_mixer, parts.channel_mixer) && parts.mlp_bias != MlpBias::kOption) {
    const bool bias = config.channel_mixer.Get<bool>("bias");
    require(bias == (parts.mlp_bias == MlpBias::kOn), "bias of the channel mixer is ",
            bias ? "on" : "off");
  }
  for (const char* option : {"gate_multiplier", "down_multiplier"})
    if (config.channel_mixer.Has(option) && !parts.mlp_multipliers)
      require(config.channel_mixer.Get<double>(option) == 1, option, " of the channel mixer is ",
              config.channel_mixer.Get<double>(option), ". Only 1 is supported.");
  one_of(config.positions, parts.positions);
  same(config.objective, "next_token");
  require(parts.embedding_scale || config.embedding.scale == 1, "the embedding's scale is ",
          config.embedding.scale);
  require(config.embedding.num_segments == 0, "the embedding has segments");
  require(!config.embedding.norm, "the embedding has a norm");
  require(!config.head.bias, "the head has a bias");
  require(parts.logit_scale || config.head.logit_scale == 1, "the head's logit_scale is ",
          config.head.logit_scale);
  for (const model::LayerGroup& group : config.hybrid) {
    require(parts.checks_channel_mixers || !group.channel_mixer,
            "hybrid layers have a channel mixer of their own");
    require(!group.block || parts.has_own_blocks, "hybrid layers have a block of their own");
  }
  if (parts.checks_mixers) return lines;
  AddAttentionObstacles(config.mixer, parts.attention_options, lines);
  for (const model::LayerGroup& group : config.hybrid)
    if (group.mixer) AddAttentionObstacles(*group.mixer, parts.attention_options, lines);
  return lines;
}

std::string Renamed(std::string parameter, std::span<const Renaming> renamings) {
  for (const auto& [ours, theirs] : renamings) {
    const size_t place = parameter.find(ours);
    if (place != std::string::npos) parameter.replace(place, std::string_view(ours).size(), theirs);
  }
  return parameter;
}

bool IsWholeNumber(double value) { return std::abs(value) < 1e15 && value == std::trunc(value); }

ordered_json Number(double value) {
  if (IsWholeNumber(value)) return static_cast<int64_t>(value);
  return value;
}

void IgnoreCommonKeys(ConfigReader& reader) {
  reader.Ignore({"model_type",
                 "architectures",
                 "dtype",
                 "torch_dtype",
                 "transformers_version",
                 "_name_or_path",
                 "use_cache",
                 "pad_token_id",
                 "bos_token_id",
                 "eos_token_id",
                 "output_attentions",
                 "output_hidden_states",
                 "return_dict",
                 "tokenizer_class",
                 "is_encoder_decoder",
                 "is_decoder",
                 "id2label",
                 "label2id",
                 "problem_type",
                 "chunk_size_feed_forward",
                 "add_cross_attention",
                 "cross_attention_hidden_size",
                 "torchscript",
                 "use_bfloat16",
                 "pruned_heads",
                 "auto_map"});
  reader.Require(reader.Bool("is_causal", true),
                 "is_causal is false, so tokens see later tokens. Use a causal model.");
  const nlohmann::json* of_layers = reader.Member("per_layer_config");
  reader.Require(
      of_layers == nullptr || of_layers->empty(),
      "per_layer_config gives some layers other settings. Use a model without this key.");
  reader.Require(!reader.Has("quantization_config"), kQuantizedWeights);
}

model::ModelConfig ReadFlaFrame(ConfigReader& reader, const FrameDefaults& defaults) {
  IgnoreCommonKeys(reader);
  // These keys select fla's kernels, configure its training, or set the size of a cache.
  reader.Ignore({"attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy",
                 "fuse_linear_cross_entropy", "use_l2warp", "max_position_embeddings"});
  model::ModelConfig config;
  config.vocab_size = reader.Int("vocab_size", defaults.vocab_size);
  config.model_dim = reader.Int("hidden_size", defaults.hidden_size);
  config.num_layers = reader.Int("num_hidden_layers", defaults.num_layers);
  const double ratio = reader.IsNull("hidden_ratio") ? kRatioOfNull : defaults.hidden_ratio;
  config.channel_mixer.Set("ratio", reader.Double("hidden_ratio", ratio));
  config.channel_mixer.Set("width", reader.Int("intermediate_size", 0));
  config.norm.Set("eps", reader.Double("norm_eps", 1e-6));
  config.head.tied = reader.Bool("tie_word_embeddings", false);
  config.initializer_range = reader.Double("initializer_range", 0.02);
  RequireSwish(reader, "swish");
  reader.Require(!reader.Has("attnres_block_size"),
                 "attnres_block_size is set, which adds tensors. Only null is supported.");
  return config;
}

void WriteFlaFrame(const model::ModelConfig& config, ordered_json& json) {
  json["hidden_size"] = config.model_dim;
  json["num_hidden_layers"] = config.num_layers;
  json["hidden_ratio"] = config.channel_mixer.Get<double>("ratio");
  json["intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
  json["hidden_act"] = "swish";
  json["norm_eps"] = config.norm.Get<double>("eps");
  json["attnres_block_size"] = nullptr;
  json["fuse_norm"] = true;
  json["fuse_swiglu"] = true;
  json["fuse_cross_entropy"] = true;
  json["fuse_linear_cross_entropy"] = false;
  json["use_l2warp"] = false;
}

std::vector<std::string> FlaObstacles(const model::ModelConfig& config) {
  std::vector<std::string> lines = PartObstacles(config, {});
  for (const model::LayerGroup& group : config.hybrid) {
    if (!group.mixer) continue;
    const model::MixerConfig& mixer = *group.mixer;
    if (mixer.name() != "softmax") {
      lines.push_back("hybrid layers have the mixer " + mixer.name() +
                      ". Only softmax together with one linear mixer is supported.");
      continue;
    }
    for (const char* option : {"qk_norm", "out_bias"})
      if (mixer.Get<bool>(option)) lines.push_back(Concat(option, " is on in the hybrid layers"));
    if (mixer.Get<double>("rope_theta") == 0)
      lines.emplace_back("the hybrid layers have no rotary positions");
    if (mixer.Get<int64_t>("head_dim") * mixer.Get<int64_t>("num_heads") != config.model_dim)
      lines.emplace_back("head_dim of the hybrid layers is not model_dim / num_heads");
  }
  return lines;
}

void ReadFlaHybrid(ConfigReader& reader, model::ModelConfig& config) {
  const nlohmann::json* attn = reader.Member("attn");
  if (attn == nullptr) return;
  if (!attn->is_array()) return ReadHybridEntry(reader, *attn, config);
  for (const nlohmann::json& entry : *attn) ReadHybridEntry(reader, entry, config);
}

ordered_json FlaHybrid(const model::ModelConfig& config) {
  if (config.hybrid.empty()) return nullptr;
  ordered_json groups = ordered_json::array();
  for (const model::LayerGroup& group : config.hybrid) {
    const model::MixerConfig& mixer = *group.mixer;
    ordered_json entry = {{"layers", group.Numbers(config.num_layers)},
                          {"num_heads", mixer.Get<int64_t>("num_heads")},
                          {"num_kv_heads", mixer.Get<int64_t>("num_kv_heads")},
                          {"qkv_bias", mixer.Get<bool>("qkv_bias")},
                          {"window_size", nullptr},
                          {"rope_theta", mixer.Get<double>("rope_theta")}};
    if (const int64_t window = mixer.Get<int64_t>("window"); window > 0)
      entry["window_size"] = window;
    groups.push_back(std::move(entry));
  }
  return groups.size() == 1 ? groups[0] : groups;
}

std::string FlaName(const std::string& parameter) {
  return parameter == "lm_head.weight" ? parameter : "model." + parameter;
}

std::string FlaLinearName(const std::string& parameter, ConfigReader* reader) {
  std::string name = FlaName(parameter);
  const std::string fused = "g_norm_swish_gate.weight";
  if (reader == nullptr || reader->Bool("fuse_norm", true) || !name.ends_with(fused)) return name;
  return name.substr(0, name.size() - fused.size()) + "g_norm.weight";
}

void ReadFlaHeads(ConfigReader& reader, model::MixerConfig& mixer, int64_t num_heads,
                  double expand_k, double expand_v) {
  const int64_t heads = reader.Int("num_heads", num_heads);
  mixer.Set("num_heads", heads);
  mixer.Set("num_kv_heads", reader.Int("num_kv_heads", heads));
  mixer.Set("expand_k", reader.Double("expand_k", expand_k));
  mixer.Set("expand_v", reader.Double("expand_v", expand_v));
}

void WriteFlaHeads(const model::MixerConfig& mixer, ordered_json& json) {
  json["attn_mode"] = "chunk";
  json["num_heads"] = mixer.Get<int64_t>("num_heads");
  json["num_kv_heads"] = mixer.Get<int64_t>("num_kv_heads");
  json["expand_k"] = Number(mixer.Get<double>("expand_k"));
  json["expand_v"] = Number(mixer.Get<double>("expand_v"));
}

void ReadFlaLinear(ConfigReader& reader, model::MixerConfig& mixer, int64_t num_heads,
                   double expand_k, double expand_v, ActivationNames names) {
  ReadFlaHeads(reader, mixer, num_heads, expand_k, expand_v);
  if (reader.Has("feature_map"))
    mixer.Set("feature_map", ReadActivation(reader, "feature_map", "", names));
  mixer.Set("use_output_gate", reader.Bool("use_output_gate", true));
  ReadFlaAffine(reader, mixer);
}

void ReadFlaAffine(ConfigReader& reader, model::MixerConfig& mixer) {
  mixer.Set("norm_affine", reader.Bool("elementwise_affine", true));
}

void ReadFlaAttention(ConfigReader& reader, model::MixerConfig& mixer) {
  mixer.Set("num_kv_heads", reader.Int("num_kv_heads", mixer.Get<int64_t>("num_heads")));
  mixer.Set("qkv_bias", reader.Bool("qkv_bias", false));
  mixer.Set("window", reader.Int("window_size", 0));
  reader.Require(!reader.IsNull("rope_theta"),
                 "rope_theta is null, which the class cannot run. Set it to a number.");
  mixer.Set("rope_theta", reader.Double("rope_theta", 10000));
}

void WriteFlaLinear(const model::MixerConfig& mixer, ActivationNames names, ordered_json& json) {
  WriteFlaHeads(mixer, json);
  json["feature_map"] = nullptr;
  if (const auto map = mixer.Get<std::string>("feature_map"); map != "none")
    json["feature_map"] = WrittenActivation(map, names);
  json["use_output_gate"] = mixer.Get<bool>("use_output_gate");
  json["elementwise_affine"] = mixer.Get<bool>("norm_affine");
}

void ReadFlaShortConv(ConfigReader& reader, bool by_default, model::MixerConfig& mixer) {
  const bool use_short_conv = reader.Bool("use_short_conv", by_default);
  mixer.Set("use_short_conv", use_short_conv);
  if (use_short_conv) {
    mixer.Set("conv_size", reader.Int("conv_size", kUsualConvSize));
  } else {
    reader.Ignore({"conv_size"});
  }
}

void WriteFlaShortConv(const model::MixerConfig& mixer, nlohmann::ordered_json& json) {
  const bool use_short_conv = mixer.Get<bool>("use_short_conv");
  json["use_short_conv"] = use_short_conv;
  json["conv_size"] = use_short_conv ? mixer.Get<int64_t>("conv_size") : kUsualConvSize;
}

std::vector<std::string> FlaLayout::Obstacles(const model::ModelConfig& config) const {
  return FlaObstacles(config);
}

void FlaLayout::WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const {
  WriteFlaFrame(config, json);
  WriteMixer(config, json);
  json["attn"] = FlaHybrid(config);
}

model::ModelConfig FlaLayout::ReadConfig(ConfigReader& reader) const {
  model::ModelConfig config = ReadFlaFrame(reader, frame_);
  config.mixer = model::MixerConfig(mixer());
  ReadMixer(reader, config);
  ReadFlaHybrid(reader, config);
  return config;
}

std::string FlaLayout::TensorName(const std::string& parameter, ConfigReader*) const {
  return FlaName(parameter);
}

}  // namespace halflife::interop
