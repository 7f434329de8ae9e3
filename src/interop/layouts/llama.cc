#include "interop/layouts/llama.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "core/error.h"

namespace halflife::interop {
namespace {

// Names that differ in more than the prefix.
constexpr Renaming kLlamaNames[] = {
    {"embeddings.", "embed_tokens."},
    {".attn.", ".self_attn."},
    {".attn_norm.", ".input_layernorm."},
    {".mlp_norm.", ".post_attention_layernorm."},
};

}  // namespace

std::string LlamaFrame::TensorName(const std::string& parameter, ConfigReader*) const {
  return FlaName(Renamed(parameter, kLlamaNames));
}

bool LlamaFrame::IsBuffer(const std::string& tensor, ConfigReader&) const {
  return tensor.ends_with(".rotary_emb.inv_freq");
}

std::vector<std::string> LlamaFrame::FrameObstacles(const model::ModelConfig& config,
                                                    MlpBias mlp_bias) {
  std::vector<std::string> lines =
      PartObstacles(config, {.positions = RopeScalings(), .mlp_bias = mlp_bias});
  const auto theta = config.mixer.Get<double>("rope_theta");
  if (theta == 0) lines.emplace_back("q and k are not rotated");
  if (HasReversedRamp(config, config.mixer)) lines.emplace_back(kReversedRamp);
  return lines;
}

void LlamaFrame::WriteFrame(const model::ModelConfig& config, nlohmann::ordered_json& json) {
  const model::MixerConfig& options = config.mixer;
  json["hidden_size"] = config.model_dim;
  json["intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = options.Get<int64_t>("num_heads");
  json["num_key_value_heads"] = options.Get<int64_t>("num_kv_heads");
  json["head_dim"] = options.Get<int64_t>("head_dim");
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm.Get<double>("eps");
  WriteRope(config.mixer, config.positions, /*has_part=*/false, json);
  json["attention_dropout"] = 0.0;
}

model::ModelConfig LlamaFrame::ReadFrame(ConfigReader& reader) const {
  IgnoreCommonKeys(reader);
  reader.Ignore({"attention_dropout"});
  model::ModelConfig config;
  config.vocab_size = reader.Int("vocab_size", defaults_.vocab_size);
  config.model_dim = reader.Int("hidden_size", defaults_.hidden_size);
  config.channel_mixer.Set("width", reader.Int("intermediate_size", defaults_.intermediate_size));
  config.num_layers = reader.Int("num_hidden_layers", defaults_.num_layers);
  config.norm.Set("eps", reader.Double("rms_norm_eps", 1e-6));
  config.head.tied = reader.Bool("tie_word_embeddings", false);
  config.initializer_range = reader.Double("initializer_range", 0.02);
  RequireSwish(reader, "silu");
  model::MixerConfig& options = config.mixer = model::MixerConfig(mixer());
  const int64_t heads = reader.Int("num_attention_heads", defaults_.num_heads);
  options.Set("num_heads", heads);
  const bool ungrouped = defaults_.num_kv_heads == 0 || reader.IsNull("num_key_value_heads");
  options.Set("num_kv_heads",
              reader.Int("num_key_value_heads", ungrouped ? heads : defaults_.num_kv_heads));
  const int64_t head_dim =
      defaults_.head_dim > 0 ? defaults_.head_dim : std::max<int64_t>(1, config.model_dim / heads);
  options.Set("head_dim", reader.Int("head_dim", head_dim));
  const PositionsKey positions = positions_key();
  ReadRope(reader,
           {.head_dim = options.Get<int64_t>("head_dim"),
            .max_positions = reader.Int(positions.name, positions.usual, /*min=*/0)},
           config.mixer, config.positions);
  return config;
}

void LlamaFrame::AddBiasObstacles(const model::MixerConfig& mixer,
                                  std::vector<std::string>& lines) {
  if (mixer.Get<bool>("out_bias") && !mixer.Get<bool>("qkv_bias"))
    lines.emplace_back("out_bias is on without qkv_bias");
}

void LlamaFrame::ReadAttentionBias(ConfigReader& reader, model::MixerConfig& mixer) {
  const bool bias = reader.Bool("attention_bias", false);
  mixer.Set("qkv_bias", bias);
  mixer.Set("out_bias", bias);
}

std::vector<dist::ParamSpec> LlamaFrame::OutputBiases(const model::ModelConfig& config) {
  const model::MixerConfig& options = config.mixer;
  std::vector<dist::ParamSpec> biases;
  if (!options.Get<bool>("qkv_bias") || options.Get<bool>("out_bias")) return biases;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    biases.push_back(
        {.name = Concat("layers.", layer, ".attn.o_proj.bias"), .shape = {config.model_dim}});
  return biases;
}

std::optional<std::vector<int64_t>> WindowsOfLayers(const model::ModelConfig& config) {
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const model::MixerConfig& mixer = config.mixer_of(layer);
    if (mixer.name() != config.mixer.name()) return std::nullopt;
    windows.push_back(mixer.Get<int64_t>("window"));
    model::MixerConfig like_others = mixer;
    like_others.Set("window", config.mixer.Get<int64_t>("window"));
    if (!(like_others == config.mixer)) return std::nullopt;
  }
  return windows;
}

// The Llama class of `transformers`: softmax attention that can be loaded without fla and its
// kernels.
namespace {

class Llama : public LlamaFrame {
 public:
  Llama() : LlamaFrame({}) {}

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FrameObstacles(config, MlpBias::kOption);
    const model::MixerConfig& options = config.mixer;
    if (options.Get<bool>("qk_norm")) lines.emplace_back("qk_norm is on");
    if (options.Get<int64_t>("window") > 0)
      lines.emplace_back(Concat("window is ", options.Get<int64_t>("window")));
    AddBiasObstacles(options, lines);
    if (config.model_dim % options.Get<int64_t>("num_heads") != 0)
      lines.emplace_back("num_heads does not divide model_dim, which the class checks");
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteFrame(config, json);
    json["attention_bias"] = config.mixer.Get<bool>("qkv_bias");
    json["mlp_bias"] = config.channel_mixer.Get<bool>("bias");
    json["pretraining_tp"] = 1;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    reader.Ignore({"pretraining_tp"});
    model::ModelConfig config = ReadFrame(reader);
    config.channel_mixer.Set("bias", reader.Bool("mlp_bias", false));
    ReadAttentionBias(reader, config.mixer);
    return config;
  }

  std::vector<dist::ParamSpec> ZeroTensors(const model::ModelConfig& config) const override {
    return OutputBiases(config);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeLlama() { return std::make_unique<Llama>(); }

// The Mistral class of `transformers`: Llama without biases, with a window of visible keys in all
// layers.
namespace {

class Mistral : public LlamaFrame {
 public:
  Mistral()
      : LlamaFrame({.intermediate_size = 14336, .num_kv_heads = 8, .max_positions = 131072}) {}

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FrameObstacles(config, MlpBias::kOff);
    for (const char* option : {"qk_norm", "qkv_bias", "out_bias"})
      if (config.mixer.Get<bool>(option)) lines.emplace_back(Concat(option, " is on"));
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteFrame(config, json);
    json["sliding_window"] = nullptr;
    if (const auto window = config.mixer.Get<int64_t>("window"); window > 0)
      json["sliding_window"] = window;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFrame(reader);
    if (!reader.IsNull("sliding_window"))
      config.mixer.Set("window", reader.Int("sliding_window", kUsualWindow));
    reader.Require(!reader.Has("layer_types"),
                   "layer_types is set, but all layers of the class have the same window. Remove "
                   "the key.");
    return config;
  }

  bool loads_byt5() const override { return false; }
};

}  // namespace

std::unique_ptr<Layout> MakeMistral() { return std::make_unique<Mistral>(); }

}  // namespace halflife::interop
