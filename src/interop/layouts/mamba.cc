// Mamba of `transformers`: layers that consist of a norm and a mixer. Names within a mixer are the
// same as in halflife.
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// Keys of training, or of the choice of a kernel.
void IgnoreKeysOfTraining(ConfigReader& reader) {
  reader.Ignore({"time_step_scale", "time_step_min", "time_step_max", "time_step_init_scheme",
                 "time_step_floor", "rescale_prenorm_residual", "use_mambapy",
                 "use_associative_scan", "max_position_embeddings", "residual_in_fp32",
                 // Keys of the authors' own config.json, which transformers keeps.
                 "d_model", "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm"});
}

class Mamba : public Layout {
 public:
  std::string model_type() const override { return "mamba"; }
  std::string class_name() const override { return "MambaForCausalLM"; }
  std::string mixer() const override { return "mamba"; }

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
    json["layer_norm_epsilon"] = config.norm.Get<double>("eps");
    json["state_size"] = config.mixer.Get<int64_t>("d_state");
    json["conv_kernel"] = config.mixer.Get<int64_t>("d_conv");
    json["expand"] = expand;
    json["intermediate_size"] = expand * config.model_dim;
    json["time_step_rank"] = config.mixer.Get<int64_t>("dt_rank");
    json["use_bias"] = false;
    json["use_conv_bias"] = true;
    json["hidden_act"] = "silu";
    json["residual_in_fp32"] = true;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    IgnoreKeysOfTraining(reader);
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 50280);
    config.model_dim = reader.Int("hidden_size", 768);
    config.num_layers = reader.Int("num_hidden_layers", 32);
    config.initializer_range = reader.Double("initializer_range", 0.1);
    config.head.tied = reader.Bool("tie_word_embeddings", true);
    config.norm.Set("eps", reader.Double("layer_norm_epsilon", 1e-5));
    config.channel_mixer = model::ChannelMixerConfig(model::kNoChannelMixer);
    ReadMixer(reader, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return BackboneName(parameter);
  }

 private:
  static void ReadMixer(ConfigReader& reader, model::ModelConfig& config) {
    model::MixerConfig& options = config.mixer = model::MixerConfig("mamba");
    const int64_t expand = reader.Int("expand", 2);
    options.Set("expand", expand);
    options.Set("d_state", reader.Int("state_size", 16));
    options.Set("d_conv", reader.Int("conv_kernel", 4));
    const nlohmann::json* rank = reader.Member("time_step_rank");
    const bool derived = rank == nullptr || *rank == "auto";
    options.Set("dt_rank", derived ? 0 : reader.Int("time_step_rank", 1));
    const int64_t inner = reader.Int("intermediate_size", expand * config.model_dim);
    reader.Require(inner == expand * config.model_dim, "intermediate_size is ", inner,
                   ". Only expand x hidden_size, ", expand * config.model_dim, ", is supported.");
    reader.Require(!reader.Bool("use_bias", false), "use_bias is true. Only false is supported.");
    reader.Require(reader.Bool("use_conv_bias", true),
                   "use_conv_bias is false. Only true is supported.");
    RequireSwish(reader, "silu");
  }
};

}  // namespace

std::string BackboneName(const std::string& parameter) {
  if (parameter == "lm_head.weight") return parameter;
  if (parameter == "norm.weight") return "backbone.norm_f.weight";
  constexpr Renaming kNames[] = {{".attn_norm.", ".norm."}, {".attn.", ".mixer."}};
  return "backbone." + Renamed(parameter, kNames);
}

std::unique_ptr<Layout> MakeMamba() { return std::make_unique<Mamba>(); }

}  // namespace halflife::interop
