// Nemotron-H of `transformers`: every layer is a norm and one mixer, which is Mamba-2, softmax
// attention without positions, or an MLP. A layer of Mamba-2 or attention and the MLP layer after
// it, if there is one, are one block of halflife.
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "interop/layouts/layouts.h"
#include "interop/layouts/mamba2_hybrid.h"

namespace halflife::interop {
namespace {

constexpr const char* kPattern = "hybrid_override_pattern";
constexpr char kMambaLayer = 'M', kAttentionLayer = '*', kMlpLayer = '-', kExpertsLayer = 'E';
constexpr const char* kMlp = "mlp";
constexpr const char* kNoMlp = model::kNoChannelMixer;

// Returns the letter of a name in `layers_block_type`, or '?'.
char LetterOf(const nlohmann::json& name) {
  if (name == "linear_attention" || name == "mamba") return kMambaLayer;
  if (name == "full_attention" || name == "attention") return kAttentionLayer;
  if (name == "mlp") return kMlpLayer;
  return name == "moe" ? kExpertsLayer : '?';
}

// Returns the pattern that a list of names means, one letter for each layer.
std::string ReadNames(ConfigReader& reader, const char* key, const nlohmann::json& names) {
  reader.Require(names.is_array(), key, " is not a list. Write one name for each layer.");
  std::string pattern;
  for (const nlohmann::json& name : names) {
    if (!names.is_array()) break;
    pattern += LetterOf(name);
    reader.Require(pattern.back() != '?', key, " has ", name.dump().substr(0, 40), " for layer ",
                   pattern.size() - 1,
                   ". Use a model that has only linear_attention, full_attention and mlp.");
  }
  return pattern;
}

// Returns the layer pattern. transformers reads the list of names and inference engines read the
// pattern, so both must agree if both are given.
std::string ReadPattern(ConfigReader& reader) {
  const std::string pattern = reader.String(kPattern, "");
  for (const char* key : {"layers_block_type", "layer_types"}) {
    const nlohmann::json* names = reader.Member(key);
    if (names == nullptr) continue;
    const std::string listed = ReadNames(reader, key, *names);
    reader.Require(pattern.empty() || pattern == listed, kPattern, " and ", key,
                   " differ. Remove one of them.");
    return listed;
  }
  reader.Require(!pattern.empty(), kPattern, " is missing. Write one letter for each layer: M, * ",
                 "or -.");
  return pattern;
}

// The layers of the class, as blocks of halflife.
struct Blocks {
  int64_t count = 0;
  std::vector<int64_t> with_attention, without_mlp;
};

Blocks ReadBlocks(ConfigReader& reader, const std::string& pattern) {
  Blocks blocks;
  bool has_mlp = true;  // The last block. A block before the first could take no MLP.
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char letter = pattern[i];
    if (letter == kMlpLayer) {
      reader.Require(!has_mlp, kPattern, " has - for layer ", i,
                     ", which follows neither M nor *. Use a model whose MLP layers each follow a "
                     "layer of Mamba-2 or attention.");
      if (!blocks.without_mlp.empty() && !has_mlp) blocks.without_mlp.pop_back();
      has_mlp = true;
      continue;
    }
    reader.Require(letter != kExpertsLayer, kPattern, " has E (experts) for layer ", i,
                   ". Use a model without experts.");
    const bool known = letter == kMambaLayer || letter == kAttentionLayer;
    reader.Require(known || letter == kExpertsLayer || letter == '?', kPattern, " has ", letter,
                   " for layer ", i, ". Use a model that has only M, * and -.");
    if (letter == kAttentionLayer) blocks.with_attention.push_back(blocks.count);
    blocks.without_mlp.push_back(blocks.count++);
    has_mlp = false;
  }
  return blocks;
}

bool HasMlp(const model::ModelConfig& config, int64_t block) {
  return config.channel_mixer_of(block).name() != kNoMlp;
}

// Returns the number of the class's layer with which the block begins.
int64_t FirstLayerOf(const model::ModelConfig& config, int64_t block) {
  int64_t layer = 0;
  for (int64_t before = 0; before < block; ++before) layer += HasMlp(config, before) ? 2 : 1;
  return layer;
}

// Returns the only MLP of the blocks, or null if none has one.
const model::ChannelMixerConfig* FindMlp(const model::ModelConfig& config,
                                         std::vector<std::string>& lines) {
  const model::ChannelMixerConfig* found = nullptr;
  for (int64_t block = 0; block < config.num_layers; ++block) {
    const model::ChannelMixerConfig& own = config.channel_mixer_of(block);
    if (own.name() != kMlp && own.name() != kNoMlp)
      lines.push_back(Concat("layer ", block, " has the channel_mixer ", own.name(),
                             ". Only mlp and none are supported."));
    if (own.name() != kMlp) continue;
    if (found == nullptr) found = &own;
    if (!(*found == own))
      lines.push_back(Concat("layer ", block,
                             " has another mlp than an earlier layer. Use the "
                             "same options in all layers."));
  }
  return found;
}

class NemotronH : public Layout {
 public:
  PositionsKey positions_key() const override { return {.usual = 4096}; }
  bool can_tie() const override { return false; }
  bool needs_attention_to_cache() const override { return true; }
  std::string OptionalPrefix() const override { return kBackbone; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines =
        PartObstacles(config, {.channel_mixer = config.channel_mixer.name().c_str(),
                               .mlp_bias = MlpBias::kOption,
                               .checks_mixers = true,
                               .checks_channel_mixers = true});
    FindMlp(config, lines);
    const HybridMixers mixers = FindHybridMixers(config, lines);
    if (mixers.softmax != nullptr) {
      AddOptionObstacles(
          *mixers.softmax, config.sizes(),
          {"num_heads", "num_kv_heads", "head_dim", "qk_norm_eps", "dropout", "rope_theta"}, lines);
      if (mixers.softmax->Get<double>("rope_theta") != 0)
        lines.emplace_back("softmax rotates q and k. Only a rope_theta of 0 is supported.");
    }
    if (mixers.mamba2 == nullptr) return lines;
    AddOptionObstacles(*mixers.mamba2, config.sizes(),
                       {"num_heads", "head_dim", "state_size", "num_groups", "conv_kernel",
                        "use_bias", "use_conv_bias", "dt_limit_min", "a_init"},
                       lines);
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const double eps = config.norm.Get<double>("eps");
    json["hidden_size"] = config.model_dim;
    json["layer_norm_epsilon"] = eps;
    WriteBlocks(config, json);
    std::vector<std::string> none;
    const HybridMixers mixers = FindHybridMixers(config, none);
    if (mixers.softmax != nullptr) WriteHybridSoftmax(*mixers.softmax, json);
    if (mixers.mamba2 != nullptr) WriteMamba2(*mixers.mamba2, json);
    if (const model::ChannelMixerConfig* mlp = FindMlp(config, none)) {
      json["intermediate_size"] = mlp->Get<int64_t>("width");
      json["mlp_hidden_act"] = WrittenActivation(mlp->Get<std::string>("activation"));
      json["mlp_bias"] = mlp->Get<bool>("bias");
    }
    json["attention_bias"] = false;
    json["residual_in_fp32"] = false;
    json["rescale_prenorm_residual"] = false;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreKeys(reader);
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 131072);
    config.model_dim = reader.Int("hidden_size", 4096);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    config.norm.Set("eps", reader.Double("layer_norm_epsilon", 1e-5));
    const Blocks blocks = ReadBlocks(reader, ReadPattern(reader));
    config.num_layers = blocks.count;
    reader.Require(blocks.count > 0, kPattern, " has no layer of Mamba-2 or attention.");
    ReadMlp(reader, blocks, config);
    model::MixerConfig softmax = ReadHybridSoftmax(
        reader, config.model_dim, {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128});
    const int64_t other = reader.Int("attention_head_dim", softmax.Get<int64_t>("head_dim"));
    reader.Require(other == softmax.Get<int64_t>("head_dim"), "attention_head_dim is ", other,
                   ", but head_dim is ", softmax.Get<int64_t>("head_dim"),
                   ". Set both to the width of a head of attention.");
    SetHybridMixers(ReadMamba2(reader), std::move(softmax), blocks.with_attention, config);
    return config;
  }

  TensorPlace PlaceOf(const model::ModelConfig& config, const std::string& parameter,
                      ConfigReader*) const override {
    const auto [block, of_block, of_mixer] = ParseLayerParameter(parameter);
    if (block < 0) return {.name = BackboneName(parameter), .placement = {}};
    const int64_t layer = FirstLayerOf(config, block) + (of_block.starts_with(".mlp") ? 1 : 0);
    constexpr Renaming kNames[] = {{".attn_norm.", ".norm."},
                                   {".mlp_norm.", ".norm."},
                                   {".attn.", ".mixer."},
                                   {".mlp.", ".mixer."}};
    return {.name = Concat("backbone.layers.", layer, Renamed(of_block, kNames)), .placement = {}};
  }

  // The class calls the model "model"; its folders say "backbone". transformers reads both.
  std::vector<std::string> OtherNames(const std::string& tensor) const override {
    constexpr Renaming kPrefix[] = {{"backbone.", "model."}};
    return {Renamed(tensor, kPrefix)};
  }

  // Layers that predict several tokens at once.
  bool IsUnused(const std::string& tensor) const override { return tensor.starts_with("mtp."); }

 private:
  static void IgnoreKeys(ConfigReader& reader) {
    IgnoreCommonKeys(reader);
    reader.Ignore(
        {// Without effect in the class.
         "num_hidden_layers", "attention_bias", "mamba_proj_bias", "sliding_window",
         "hidden_dropout", "expand", "mamba_expand", "use_mamba_kernels", "time_step_limit",
         "mamba_dt_limit", "tie_word_embeddings", "norm_eps", "rms_norm_eps", "num_query_groups",
         "max_position_embeddings", "rope_theta", "partial_rotary_factor",
         // These keys configure training, the choice of a kernel, or a cache.
         "time_step_max", "mamba_dt_max", "time_step_floor", "mamba_dt_init_floor",
         "time_step_rank", "chunk_size", "mamba_chunk_size", "num_logits_to_keep",
         "residual_in_fp32", "rescale_prenorm_residual", "mamba_ssm_cache_dtype", "ssm_cache_dtype",
         "time_step_scale", "time_step_init_scheme",
         // These keys describe experts, and layers that predict several tokens.
         "n_routed_experts", "num_local_experts", "n_shared_experts", "moe_intermediate_size",
         "moe_shared_expert_intermediate_size", "moe_latent_size", "moe_shared_expert_overlap",
         "num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob",
         "output_router_logits", "num_nextn_predict_layers", "mtp_layers_block_type",
         "mtp_hybrid_override_pattern"});
  }

  static void ReadMlp(ConfigReader& reader, const Blocks& blocks, model::ModelConfig& config) {
    const model::ChannelMixerConfig none(kNoMlp);
    config.channel_mixer = model::ChannelMixerConfig(
        kMlp, {{"width", reader.Int("intermediate_size", 21504)},
               {"activation", ReadActivation(reader, "mlp_hidden_act", "relu2")},
               {"bias", reader.Bool("mlp_bias", false)}});
    if (static_cast<int64_t>(blocks.without_mlp.size()) == blocks.count)
      config.channel_mixer = none;
    else if (!blocks.without_mlp.empty())
      config.hybrid.push_back({.layers = blocks.without_mlp, .channel_mixer = none});
  }

  // Reads the options of Mamba-2. The keys of older folders take precedence.
  static model::MixerConfig ReadMamba2(ConfigReader& reader) {
    const std::string act = reader.String("mamba_hidden_act", "silu");
    reader.Require(act == "silu" || act == "swish", "mamba_hidden_act is '", act,
                   "'. Only silu is supported.");
    const double least =
        reader.Double("mamba_dt_min", reader.Double("time_step_min", kUsualStepMin));
    reader.Require(least >= 0, "time_step_min is ", least, ". Use a number of at least 0.");
    if (least > 0)
      HL_WARN("interop", reader.where(), ": time_step_min is ", least,
              ". transformers and halflife limit the step sizes of Mamba-2 to it. Inference ",
              "engines do not, and neither does transformers when it generates.");
    model::MixerConfig mixer(
        kMamba2Mixer,
        {{"num_heads", reader.Int("mamba_num_heads", 128)},
         {"head_dim", reader.Int("mamba_head_dim", 64)},
         {"state_size", reader.Int("ssm_state_size", 128)},
         {"num_groups", reader.Int("mamba_n_groups", reader.Int("n_groups", 8))},
         {"conv_kernel", reader.Int("mamba_d_conv", reader.Int("conv_kernel", 4))},
         {"use_bias", reader.Bool("use_bias", false)},
         {"use_conv_bias", reader.Bool("mamba_conv_bias", reader.Bool("use_conv_bias", true))},
         {"a_init", std::string("heads")}});
    if (least >= 0) SetStepLimits({.least = least}, mixer);
    return mixer;
  }

  static void WriteMamba2(const model::MixerConfig& mixer, nlohmann::ordered_json& json) {
    const StepLimits limits = StepLimitsOf(mixer);
    WarnOfStepLimits(limits);
    json["mamba_num_heads"] = mixer.Get<int64_t>("num_heads");
    json["mamba_head_dim"] = mixer.Get<int64_t>("head_dim");
    json["ssm_state_size"] = mixer.Get<int64_t>("state_size");
    json["n_groups"] = mixer.Get<int64_t>("num_groups");
    json["conv_kernel"] = mixer.Get<int64_t>("conv_kernel");
    json["use_bias"] = mixer.Get<bool>("use_bias");
    json["use_conv_bias"] = mixer.Get<bool>("use_conv_bias");
    json["mamba_hidden_act"] = "silu";
    json["time_step_min"] = limits.least;
    json["chunk_size"] = 128;
  }

  static void WriteBlocks(const model::ModelConfig& config, nlohmann::ordered_json& json) {
    std::string pattern;
    for (int64_t block = 0; block < config.num_layers; ++block) {
      pattern += config.mixer_of(block).name() == kMamba2Mixer ? kMambaLayer : kAttentionLayer;
      if (HasMlp(config, block)) pattern += kMlpLayer;
    }
    json["num_hidden_layers"] = pattern.size();
    json[kPattern] = pattern;
  }

  static constexpr double kUsualStepMin = 1e-3;
};

}  // namespace

std::unique_ptr<Layout> MakeNemotronH() { return std::make_unique<NemotronH>(); }

}  // namespace halflife::interop
