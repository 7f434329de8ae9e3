// RWKV-4 of `transformers` and RWKV-7 of fla. A block of these classes is two layers of halflife:
// layer 2 i has the time mixing of block i, and layer 2 i + 1 has its channel mixing.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// eps of RWKV-4's ln_out, which layer_norm_epsilon does not change.
constexpr double kEpsOfLastNorm = 1e-5;
constexpr const char* kChannelMix = "rwkv_channel_mix";

// The place of a parameter of layer N: "layers.5.attn.key.weight" is ".attn.key.weight" of block 2.
struct HalfOfBlock {
  int64_t block = 0;
  bool mixes_channels = false;
  std::string rest;
};
HalfOfBlock HalfOf(const std::string& parameter) {
  const auto [layer, of_layer, of_mixer] = ParseLayerParameter(parameter);
  return {layer / 2, layer % 2 != 0, of_layer};
}

// The base of both classes.
class RwkvLayout : public Layout {
 protected:
  // Returns the obstacles that do not depend on the options of the time mixing. `form`: of the
  // channel mixing.
  std::vector<std::string> FrameObstacles(const model::ModelConfig& given, const char* form) const {
    // The norm of the embedding, the last norm and biases of norms are left to the class.
    model::ModelConfig config = given;
    config.embedding.norm = false;
    config.final_norm.reset();
    if (config.norm.name() == "layer_norm") config.norm.Set("bias", true);
    std::vector<std::string> lines = PartObstacles(config, {.norm = "layer_norm",
                                                            .has_own_blocks = mixer() == "rwkv4",
                                                            .channel_mixer = model::kNoChannelMixer,
                                                            .mlp_bias = MlpBias::kOption});
    if (config.num_layers % 2 != 0)
      lines.push_back(Concat("num_layers is ", config.num_layers, ". Only even numbers are ",
                             "supported: a layer of time mixing, then one of channel mixing."));
    if (const std::string line = LayerObstacle(given, form); !line.empty()) lines.push_back(line);
    return lines;
  }

  static void WriteSizes(const model::ModelConfig& config, nlohmann::ordered_json& json) {
    json["hidden_size"] = config.model_dim;
    json["intermediate_size"] = config.mixer_of(1).Get<int64_t>("width");
    json["num_hidden_layers"] = config.num_layers / 2;
  }

  // Sets the layers of a model of `num_blocks` blocks, apart from the options of the time mixing.
  void SetLayers(int64_t num_blocks, const char* form, int64_t width,
                 model::ModelConfig& config) const {
    config.num_layers = 2 * num_blocks;
    config.channel_mixer = model::ChannelMixerConfig(model::kNoChannelMixer);
    config.mixer = model::MixerConfig(mixer());
    model::LayerGroup channel = {.every = 2, .first = 1};
    channel.mixer = model::MixerConfig(kChannelMix, {{"form", form}, {"width", width}});
    config.hybrid.push_back(std::move(channel));
  }

 private:
  // Describes the first layer that the class cannot express. Empty: there is none.
  std::string LayerObstacle(const model::ModelConfig& config, const std::string& form) const {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      const model::MixerConfig& own = config.mixer_of(layer);
      const std::string wanted = layer % 2 == 0 ? mixer() : kChannelMix;
      if (own.name() != wanted)
        return Concat("layer ", layer, " has the mixer ", own.name(), ". Only ", wanted,
                      " is supported there.");
      if (!(own == config.mixer_of(layer % 2)))
        return Concat("the options of layer ", layer, " differ from those of layer ", layer % 2);
      if (layer % 2 == 1 && own.Get<std::string>("form") != form)
        return Concat("the form of ", kChannelMix, " is ", own.Get<std::string>("form"), ". Only ",
                      form, " is supported.");
    }
    return "";
  }
};

class Rwkv : public RwkvLayout {
 public:
  std::string OptionalPrefix() const override { return "rwkv."; }
  PositionsKey positions_key() const override {
    return {.name = "context_length", .usual = 1024, .other_name = "max_position_embeddings"};
  }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FrameObstacles(config, "rwkv4");
    if (!config.embedding.norm) lines.emplace_back("the embedding has no norm");
    if (config.norm.name() == "layer_norm" && !config.norm.Get<bool>("bias"))
      lines.emplace_back("the norm has no bias");
    const model::NormConfig last = config.final_norm.value_or(config.norm);
    if (last.name() != "layer_norm" || !last.Get<bool>("bias") || !last.Get<bool>("weight"))
      lines.emplace_back("the last norm is not a layer_norm with a weight and a bias");
    else if (!RescaleEvery(config))
      lines.push_back(Concat("no rescale_every gives the eps of the norms. Set final_norm with an ",
                             "eps of ", kEpsOfLastNorm, ", and no norm_eps of blocks."));
    if (config.mixer.name() == mixer() && config.mixer.Get<std::string>("wkv_dtype") != "fp32")
      lines.emplace_back("wkv_dtype is bf16. Only fp32 is supported.");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteSizes(config, json);
    json["attention_hidden_size"] = config.mixer.Get<int64_t>("attention_dim");
    json["layer_norm_epsilon"] = config.norm.Get<double>("eps");
    json["rescale_every"] = RescaleEvery(config).value();
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 50277);
    config.model_dim = reader.Int("hidden_size", 4096);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    config.head.tied = reader.Bool("tie_word_embeddings", false);
    const int64_t width = reader.Int("attention_hidden_size", config.model_dim);
    if (width != config.model_dim)
      HL_WARN("interop", reader.where(), ": attention_hidden_size is ", width, ", and hidden_size ",
              config.model_dim, ". transformers runs such a model only with use_cache=False.");
    config.norm =
        model::NormConfig("layer_norm", {{"eps", reader.Double("layer_norm_epsilon", 1e-5)}});
    config.embedding.norm = true;
    SetLayers(reader.Int("num_hidden_layers", 32), "rwkv4",
              reader.Int("intermediate_size", 4 * config.model_dim), config);
    const int64_t every = reader.Int("rescale_every", 6, /*min=*/INT64_MIN);
    const bool is_halved = every > 0 && every < config.num_layers;
    const bool few = !is_halved || config.num_layers / 2 / every <= kMaxHalvings;
    reader.Require(few, "rescale_every is ", every, " with ", config.num_layers / 2,
                   " layers. At most ", kMaxHalvings, " divisions by two are supported.");
    SetEps(config, few && is_halved ? every : 0);
    config.mixer.Set("attention_dim", width);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    constexpr Renaming kPrefixes[] = {{"lm_head.", "head."},
                                      {"embeddings.", "rwkv.embeddings."},
                                      {"embedding_norm.", "rwkv.blocks.0.pre_ln."},
                                      {"norm.", "rwkv.ln_out."}};
    for (const auto& [ours, theirs] : kPrefixes)
      if (parameter.starts_with(ours))
        return theirs + parameter.substr(std::string_view(ours).size());
    const HalfOfBlock half = HalfOf(parameter);
    const Renaming parts[] = {{".attn_norm.", half.mixes_channels ? ".ln2." : ".ln1."},
                              {".attn.", half.mixes_channels ? ".feed_forward." : ".attention."},
                              {".time_mix_k", ".time_mix_key"},
                              {".time_mix_v", ".time_mix_value"},
                              {".time_mix_r", ".time_mix_receptance"}};
    return Concat("rwkv.blocks.", half.block, Renamed(half.rest, parts));
  }
  Placement PlacementOf(const std::string& parameter, ConfigReader*) const override {
    return {.leading_ones = parameter.find(".time_mix_") == std::string::npos ? 0 : 2};
  }

 private:
  // The class halves the residual stream after every `rescale_every` blocks, but keeps the eps of
  // later norms. A model without halving is equivalent if the eps of a norm is 4 times as large for
  // each halving before it. 0: no halving.
  static double Scaled(double eps, int64_t num_blocks, int64_t every) {
    return every == 0 ? eps : std::ldexp(eps, static_cast<int>(2 * (num_blocks / every)));
  }
  static double EpsOf(const model::ModelConfig& config, int64_t layer) {
    const auto own = config.block_of(layer).Get<double>("norm_eps");
    return own > 0 ? own : config.norm.Get<double>("eps");
  }

  static void SetEps(model::ModelConfig& config, int64_t every) {
    const auto eps = config.norm.Get<double>("eps");
    const int64_t num_layers = std::min(config.num_layers, kMaxLayers);
    for (int64_t layer = 2 * every; every > 0 && layer < num_layers; ++layer) {
      if (layer % (2 * every) == 0)
        config.hybrid.push_back({.block = model::BlockConfig(
                                     "pre_norm", {{"norm_eps", Scaled(eps, layer / 2, every)}})});
      config.hybrid.back().layers.push_back(layer);
    }
    const double last = Scaled(kEpsOfLastNorm, config.num_layers / 2, every);
    if (eps != last) config.final_norm = model::NormConfig("layer_norm", {{"eps", last}});
  }
  // Returns the rescale_every that gives the eps of all norms of the model. Empty: none.
  static std::optional<int64_t> RescaleEvery(const model::ModelConfig& config) {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      model::BlockConfig block = config.block_of(layer);
      if (block.name() != "pre_norm") return std::nullopt;
      block.Set("norm_eps", 0.0);
      if (!(block == model::BlockConfig("pre_norm"))) return std::nullopt;
    }
    const double last = config.final_norm.value_or(config.norm).Get<double>("eps");
    const auto fits = [&](int64_t every) {
      for (int64_t layer = 0; layer < config.num_layers; ++layer)
        if (EpsOf(config, layer) != Scaled(config.norm.Get<double>("eps"), layer / 2, every))
          return false;
      return last == Scaled(kEpsOfLastNorm, config.num_layers / 2, every);
    };
    for (int64_t every = 0; every <= config.num_layers / 2; ++every)
      if (fits(every)) return every;
    return std::nullopt;
  }

  static constexpr int64_t kMaxHalvings = 100;
};

// The inner widths of RWKV-7's matrices of low rank. If the key is null, the class derives a
// multiple of 32 from the widths of the model and, with `of_heads`, of a head.
struct Rank {
  const char* key;
  int64_t usual;
  double factor;
  bool of_heads;

  int64_t OfNull(int64_t model_dim, int64_t head_dim) const {
    const double heads = of_heads ? static_cast<double>(head_dim) / 64 : 1;
    const double rank = factor * std::sqrt(static_cast<double>(model_dim)) * heads;
    return std::max<int64_t>(32, 32 * static_cast<int64_t>(std::nearbyint(rank / 32)));
  }
};
constexpr Rank kRanks[] = {{"decay_low_rank_dim", 64, 2.5, /*of_heads=*/true},
                           {"gate_low_rank_dim", 128, 5, /*of_heads=*/false},
                           {"a_low_rank_dim", 64, 2.5, /*of_heads=*/true},
                           {"v_low_rank_dim", 16, 1.7, /*of_heads=*/true}};

// key_eps with fuse_norm, and without it: the class then divides by a length of at least 1e-12.
constexpr double kFusedKeyEps = 1e-6, kPlainKeyEps = 1e-24;

class Rwkv7 : public RwkvLayout {
 public:
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FrameObstacles(config, "rwkv7");
    if (config.final_norm) lines.emplace_back("the model has a separate final_norm");
    if (config.num_layers == 2)
      lines.emplace_back("num_layers is 2. fla cannot construct a model of one block. Use 4.");
    if (config.mixer.name() == mixer() && !config.mixer.Get<bool>("value_residual"))
      lines.emplace_back("value_residual is off");
    const auto key_eps =
        config.mixer.name() == mixer() ? config.mixer.Get<double>("key_eps") : kFusedKeyEps;
    if (key_eps != kFusedKeyEps && key_eps != kPlainKeyEps)
      lines.push_back(Concat("key_eps is ", key_eps, ". Only ", kFusedKeyEps, " and ", kPlainKeyEps,
                             " are supported."));
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteSizes(config, json);
    const auto head_dim = config.mixer.Get<int64_t>("head_dim");
    json["attn_mode"] = "chunk";
    json["attn"] = nullptr;
    json["hidden_act"] = "sqrelu";
    json["hidden_ratio"] =
        Number(config.mixer_of(1).Get<int64_t>("width") / static_cast<double>(config.model_dim));
    json["head_dim"] = head_dim;
    json["num_heads"] = config.model_dim / head_dim;
    json["value_dim"] =
        std::vector<int64_t>(static_cast<size_t>(config.num_layers / 2), config.model_dim);
    for (const Rank& rank : kRanks) json[rank.key] = config.mixer.Get<int64_t>(rank.key);
    json["norm_first"] = config.embedding.norm;
    json["norm_bias"] = config.norm.Get<bool>("bias");
    json["norm_eps"] = config.norm.Get<double>("eps");
    json["fuse_norm"] = config.mixer.Get<double>("key_eps") == kFusedKeyEps;
    json["fuse_cross_entropy"] = true;
    json["fuse_linear_cross_entropy"] = false;
    json["use_l2warp"] = false;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    // These keys select fla's kernels, configure its training, or set the size of a cache.
    reader.Ignore({"attn_mode", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp",
                   "max_position_embeddings"});
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 32000);
    config.model_dim = reader.Int("hidden_size", 2048);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    config.head.tied = reader.Bool("tie_word_embeddings", false);
    config.norm = model::NormConfig("layer_norm", {{"eps", reader.Double("norm_eps", 1e-5)},
                                                   {"bias", reader.Bool("norm_bias", true)}});
    config.embedding.norm = reader.Bool("norm_first", true);
    const std::string activation = reader.String("hidden_act", "sqrelu");
    reader.Require(activation == "sqrelu", "hidden_act is '", activation,
                   "'. Only sqrelu is supported.");
    reader.Require(!reader.Has("attn"),
                   "attn is set, which the class cannot run. Only null is supported.");
    SetLayers(reader.Int("num_hidden_layers", 24), "rwkv7", ReadWidth(reader, config.model_dim),
              config);
    ReadTimeMixing(reader, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    if (parameter.starts_with("embedding_norm."))
      return "model.layers.0.pre_norm." +
             parameter.substr(std::string_view("embedding_norm.").size());
    if (!parameter.starts_with("layers.")) return FlaName(parameter);
    const HalfOfBlock half = HalfOf(parameter);
    constexpr Renaming kChannelParts[] = {{".attn_norm.", ".ffn_norm."}, {".attn.", ".ffn."}};
    return Concat("model.layers.", half.block,
                  half.mixes_channels ? Renamed(half.rest, kChannelParts) : half.rest);
  }
  Placement PlacementOf(const std::string& parameter, ConfigReader*) const override {
    const bool is_mix = parameter.find(".attn.x_") != std::string::npos;
    return {.leading_ones = is_mix && !HalfOf(parameter).mixes_channels ? 2 : 0};
  }

 private:
  static int64_t ReadWidth(ConfigReader& reader, int64_t model_dim) {
    const double ratio = reader.Double("hidden_ratio", 4);
    reader.Require(ratio > 0 && ratio <= 1024, "hidden_ratio is ", ratio,
                   ". Only numbers above 0, up to 1024, are supported.");
    const auto inner = static_cast<int64_t>(static_cast<double>(model_dim) *
                                            (ratio > 0 && ratio <= 1024 ? ratio : 4));
    return reader.Int("intermediate_size", std::max<int64_t>(32, (inner + 31) / 32 * 32));
  }

  static void ReadTimeMixing(ConfigReader& reader, model::ModelConfig& config) {
    // The class ignores num_heads if head_dim is set.
    const int64_t num_given = reader.Int("num_heads", 0, /*min=*/0);
    const bool derived = reader.IsNull("head_dim") && num_given > 0;
    const int64_t head_dim =
        reader.Int("head_dim", derived ? std::max<int64_t>(1, config.model_dim / num_given) : 64);
    config.mixer.Set("head_dim", head_dim);
    config.mixer.Set("key_eps", reader.Bool("fuse_norm", true) ? kFusedKeyEps : kPlainKeyEps);
    reader.Require(config.model_dim % head_dim == 0, "head_dim is ", head_dim,
                   ". Only divisors of hidden_size, ", config.model_dim, ", are supported.");
    for (const Rank& rank : kRanks) {
      const bool is_null = reader.IsNull(rank.key);
      config.mixer.Set(
          rank.key,
          reader.Int(rank.key, is_null ? rank.OfNull(config.model_dim, head_dim) : rank.usual));
    }
    if (const nlohmann::json* width = reader.Member("value_dim")) {
      const auto all = width->is_array() ? *width : nlohmann::json::array({*width});
      bool same = true;
      for (const nlohmann::json& one : all) same = same && one == config.model_dim;
      reader.Require(same, "value_dim is not hidden_size, ", config.model_dim,
                     ". Only this width is supported.");
    }
  }
};

}  // namespace

std::unique_ptr<Layout> MakeRwkv() { return std::make_unique<Rwkv>(); }
std::unique_ptr<Layout> MakeRwkv7() { return std::make_unique<Rwkv7>(); }

}  // namespace halflife::interop
