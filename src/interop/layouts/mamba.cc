// Mamba and Mamba-2 of `transformers` and of fla: layers that consist of a norm and a mixer. Both
// libraries have the same model_type and tensors and mostly the same keys. Export writes the keys
// of both, so that either class computes the same from one folder. Names within a mixer are the
// same as in halflife.
#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "interop/layouts/layouts.h"
#include "interop/layouts/mamba2_hybrid.h"

namespace halflife::interop {
namespace {

// Ignores keys of training, and those that choose a kernel.
void IgnoreKeysOfTraining(ConfigReader& reader) {
  reader.Ignore({"time_step_scale", "time_step_min", "time_step_max", "time_step_init_scheme",
                 "time_step_floor", "rescale_prenorm_residual", "use_mambapy",
                 "use_associative_scan", "max_position_embeddings", "residual_in_fp32",
                 // Keys of the authors' own config.json, which transformers keeps.
                 "d_model", "d_inner", "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm",
                 "pad_vocab_size_multiple",
                 // Keys of fla's class.
                 "dt_scale", "dt_min", "dt_max", "dt_init_scheme", "dt_init_floor", "fuse_norm",
                 "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp"});
}

// transformers and fla have classes of the same names. Their keys and defaults differ. A folder of
// fla is recognised by keys that only fla's class has.
bool IsFla(ConfigReader& reader) {
  if (reader.Has("layer_norm_epsilon")) return false;
  return std::ranges::any_of(
      std::initializer_list<const char*>{"norm_eps", "rmsnorm", "D_has_hdim", "dt_limit", "dt_min",
                                         "dt_max", "dt_init_floor", "dt_rank", "dt_scale",
                                         "dt_init_scheme", "fuse_norm", "fuse_cross_entropy",
                                         "fuse_linear_cross_entropy", "use_l2warp"},
      [&](const char* key) { return reader.Has(key); });
}

void WarnOfRescaling(ConfigReader& reader, bool is_fla) {
  if (is_fla || !reader.Bool("rescale_prenorm_residual", false)) return;
  HL_WARN("interop", reader.where(), ": rescale_prenorm_residual is true. transformers divides ",
          "out_proj by the root of the number of layers when it loads the folder. halflife uses ",
          "the stored weights. Set rescale_prenorm_residual to false in config.json for equal ",
          "scores in transformers.");
}

double ReadNormEps(ConfigReader& reader) {
  const double eps = reader.Double(IsFla(reader) ? "norm_eps" : "layer_norm_epsilon", 1e-5),
               other = reader.Double("norm_eps", eps);
  reader.Require(eps == other, "layer_norm_epsilon is ", eps, ", but norm_eps is ", other,
                 ". Only equal values are supported.");
  return eps;
}

class Mamba : public Layout {
 public:
  std::string OptionalPrefix() const override { return kBackbone; }
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(
        config, {.channel_mixer = model::kNoChannelMixer, .mlp_bias = MlpBias::kOption});
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const auto expand = config.mixer.Get<int64_t>("expand");
    json["hidden_size"] = config.model_dim;
    json["num_hidden_layers"] = config.num_layers;
    for (const char* key : {"norm_eps", "layer_norm_epsilon"})
      json[key] = config.norm.Get<double>("eps");
    json["state_size"] = config.mixer.Get<int64_t>("d_state");
    json["conv_kernel"] = config.mixer.Get<int64_t>("d_conv");
    json["expand"] = expand;
    json["intermediate_size"] = expand * config.model_dim;
    for (const char* key : {"dt_rank", "time_step_rank"})
      json[key] = config.mixer.Get<int64_t>("dt_rank");
    json["use_bias"] = false;
    json["use_conv_bias"] = true;
    json["hidden_act"] = "silu";
    json["residual_in_fp32"] = true;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    IgnoreKeysOfTraining(reader);
    model::ModelConfig config;
    const bool is_fla = IsFla(reader);
    config.vocab_size = reader.Int("vocab_size", is_fla ? 32000 : 50280);
    config.model_dim = reader.Int("hidden_size", is_fla ? 2048 : 768);
    config.num_layers = reader.Int("num_hidden_layers", is_fla ? 48 : 32);
    config.initializer_range = reader.Double("initializer_range", is_fla ? 0.02 : 0.1);
    config.head.tied = reader.Bool("tie_word_embeddings", !is_fla);
    config.norm.Set("eps", ReadNormEps(reader));
    config.channel_mixer = model::ChannelMixerConfig(model::kNoChannelMixer);
    ReadMixer(reader, is_fla, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return BackboneName(parameter);
  }

 private:
  static void ReadMixer(ConfigReader& reader, bool is_fla, model::ModelConfig& config) {
    model::MixerConfig& options = config.mixer = model::MixerConfig("mamba");
    const int64_t expand = reader.Int("expand", 2);
    options.Set("expand", expand);
    options.Set("d_state", reader.Int("state_size", 16));
    options.Set("d_conv", reader.Int("conv_kernel", 4));
    // Older versions of fla have the key of transformers.
    const bool is_new_fla = is_fla && !reader.Has("time_step_rank");
    const int64_t rank = ReadRank(reader, is_new_fla ? "dt_rank" : "time_step_rank"),
                  other = reader.Has("dt_rank") ? ReadRank(reader, "dt_rank") : rank;
    reader.Require(rank == other, "time_step_rank is ", rank, ", but dt_rank is ", other,
                   ". Only equal values are supported.");
    options.Set("dt_rank", rank);
    const int64_t inner = reader.Int("intermediate_size", expand * config.model_dim);
    reader.Require(inner == expand * config.model_dim, "intermediate_size is ", inner,
                   ". Only expand x hidden_size, ", expand * config.model_dim, ", is supported.");
    reader.Require(!reader.Bool("use_bias", false), "use_bias is true. Only false is supported.");
    reader.Require(reader.Bool("use_conv_bias", true),
                   "use_conv_bias is false. Only true is supported.");
    RequireSwish(reader, "silu");
    WarnOfRescaling(reader, is_fla);
  }
  // 0: derived from the model's width.
  static int64_t ReadRank(ConfigReader& reader, const char* key) {
    const nlohmann::json* rank = reader.Member(key);
    return rank == nullptr || *rank == "auto" ? 0 : reader.Int(key, 1);
  }
};

class Mamba2 : public Layout {
 public:
  std::string OptionalPrefix() const override { return kBackbone; }
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(
        config, {.channel_mixer = model::kNoChannelMixer, .mlp_bias = MlpBias::kOption});
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    if (config.mixer.name() != mixer()) return lines;
    AddOptionObstacles(
        config.mixer, config.sizes(),
        {"num_heads", "head_dim", "state_size", "num_groups", "conv_kernel", "use_bias",
         "use_conv_bias", "norm", "dt_limit_min", "dt_limit_max", "a_init"},
        lines);
    const std::string norm = config.mixer.Get<std::string>("norm");
    if (norm != "gate_first")
      lines.push_back("norm is " + norm + ". Only gate_first is supported.");
    const int64_t inner = InnerWidth(config.mixer);
    if (inner % config.model_dim != 0)
      lines.push_back(Concat("num_heads x head_dim is ", inner, ". Only multiples of model_dim, ",
                             config.model_dim, ", are supported."));
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& mixer = config.mixer;
    const double eps = config.norm.Get<double>("eps");
    json["hidden_size"] = config.model_dim;
    json["num_hidden_layers"] = config.num_layers;
    json["norm_eps"] = eps;
    json["layer_norm_epsilon"] = eps;
    json["state_size"] = mixer.Get<int64_t>("state_size");
    json["num_heads"] = mixer.Get<int64_t>("num_heads");
    json["head_dim"] = mixer.Get<int64_t>("head_dim");
    json["expand"] = InnerWidth(mixer) / config.model_dim;
    json["n_groups"] = mixer.Get<int64_t>("num_groups");
    json["conv_kernel"] = mixer.Get<int64_t>("conv_kernel");
    json["use_bias"] = mixer.Get<bool>("use_bias");
    json["use_conv_bias"] = mixer.Get<bool>("use_conv_bias");
    json["hidden_act"] = "silu";
    json["rmsnorm"] = true;
    json["norm_before_gate"] = false;
    json["D_has_hdim"] = false;
    json["chunk_size"] = 256;
    json["residual_in_fp32"] = true;
    // With true, transformers divides out_proj each time that it loads the folder.
    json["rescale_prenorm_residual"] = false;
    WriteStepLimits(StepLimitsOf(mixer), {"time_step_limit", "dt_limit"}, json);
    if (mixer.Get<int64_t>("num_groups") > 1)
      HL_WARN("interop", "export: num_groups is ", mixer.Get<int64_t>("num_groups"),
              ". Without mamba_ssm, fla assigns heads to groups in another order. ",
              "Load the folder with transformers, or install mamba_ssm.");
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    // Keys of training and of initial values, or of the choice of a kernel.
    reader.Ignore({"time_step_min",
                   "time_step_max",
                   "time_step_floor",
                   "time_step_rank",
                   "dt_min",
                   "dt_max",
                   "dt_init_floor",
                   "A_init_range",
                   "conv_init",
                   "chunk_size",
                   "residual_in_fp32",
                   "max_position_embeddings",
                   "fuse_norm",
                   "fuse_cross_entropy",
                   "fuse_linear_cross_entropy",
                   "use_l2warp",
                   "intermediate_size",
                   "rms_norm",
                   "time_step_init_scheme",
                   "time_step_scale"});
    const bool is_fla = IsFla(reader);
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", is_fla ? 32000 : 32768);
    config.model_dim = reader.Int("hidden_size", is_fla ? 2048 : 4096);
    config.num_layers = reader.Int("num_hidden_layers", is_fla ? 48 : 64);
    config.initializer_range = reader.Double("initializer_range", is_fla ? 0.02 : 0.1);
    config.head.tied = reader.Bool("tie_word_embeddings", false);
    config.norm.Set("eps", ReadNormEps(reader));
    config.channel_mixer = model::ChannelMixerConfig(model::kNoChannelMixer);
    ReadMixer(reader, is_fla, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return BackboneName(parameter);
  }

 private:
  static int64_t InnerWidth(const model::MixerConfig& mixer) {
    return mixer.Get<int64_t>("num_heads") * mixer.Get<int64_t>("head_dim");
  }

  static void ReadMixer(ConfigReader& reader, bool is_fla, model::ModelConfig& config) {
    model::MixerConfig& options = config.mixer = model::MixerConfig("mamba2");
    const int64_t inner = reader.Int("expand", 2) * config.model_dim;
    const int64_t head_dim = reader.Int("head_dim", 64);
    const int64_t num_heads =
        reader.Int("num_heads", is_fla && inner % head_dim == 0 ? inner / head_dim : 128);
    reader.Require(num_heads * head_dim == inner, "num_heads x head_dim is ", num_heads * head_dim,
                   ". Only expand x hidden_size, ", inner, ", is supported.");
    options.Set("num_heads", num_heads);
    options.Set("head_dim", head_dim);
    options.Set("state_size", reader.Int("state_size", 128));
    options.Set("num_groups", reader.Int("n_groups", is_fla ? 1 : 8));
    options.Set("conv_kernel", reader.Int("conv_kernel", 4));
    options.Set("use_bias", reader.Bool("use_bias", false));
    options.Set("use_conv_bias", reader.Bool("use_conv_bias", true));
    // Only fla reads these two keys. transformers always normalises the gated values, even if
    // config.json has norm_before_gate: true, as that of Mamba-Codestral does.
    const bool norm = reader.Bool("rmsnorm", true) || !is_fla,
               norm_first = reader.Bool("norm_before_gate", false) && is_fla;
    options.Set("norm", std::string(!norm ? "none" : norm_first ? "norm_first" : "gate_first"));
    ReadLimits(reader, is_fla, options);
    reader.Require(!reader.Bool("D_has_hdim", false),
                   "D_has_hdim is true. Only false is supported.");
    RequireSwish(reader, "silu");
    WarnOfRescaling(reader, is_fla);
  }

  static void ReadLimits(ConfigReader& reader, bool is_fla, model::MixerConfig& options) {
    StepLimits limits = ReadStepLimits(reader, "time_step_limit");
    const StepLimits fla = ReadStepLimits(reader, "dt_limit");
    if (is_fla && !reader.Has("time_step_limit")) limits = fla;
    reader.Require(limits == fla || !reader.Has("dt_limit"),
                   "time_step_limit and dt_limit differ. Only equal values are supported.");
    SetStepLimits(limits, options);
  }
};

}  // namespace

std::string BackboneName(const std::string& parameter) {
  if (parameter == "lm_head.weight") return parameter;
  if (parameter == "norm.weight") return Concat(kBackbone, "norm_f.weight");
  constexpr Renaming kNames[] = {{".attn_norm.", ".norm."}, {".attn.", ".mixer."}};
  return kBackbone + Renamed(parameter, kNames);
}

std::unique_ptr<Layout> MakeMamba() { return std::make_unique<Mamba>(); }
std::unique_ptr<Layout> MakeMamba2() { return std::make_unique<Mamba2>(); }

}  // namespace halflife::interop
