// LlamaForCausalLM and the classes of `transformers` that derive from it: Mistral, Qwen2 and Qwen3.
// They share the sizes, RMSNorm, the SwiGLU block, ties, grouped heads, rotary positions and tensor
// names.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// sliding_window of classes with windows, if config.json lacks the key.
inline constexpr int64_t kUsualWindow = 4096;

class LlamaFrame : public Layout {
 public:
  // The class's defaults of keys in config.json.
  struct Defaults {
    int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_layers = 32;
    int64_t num_heads = 32, num_kv_heads = 0;  // 0: num_heads
    int64_t head_dim = 0;                      // 0: hidden_size / num_heads
    int64_t max_positions = 2048;
  };
  explicit LlamaFrame(const Defaults& defaults) : defaults_(defaults) {}

  PositionsKey positions_key() const override { return {.usual = defaults_.max_positions}; }
  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override;
  bool IsBuffer(const std::string& tensor, ConfigReader& reader) const override;

 protected:
  // Returns what none of the classes can express.
  static std::vector<std::string> FrameObstacles(const model::ModelConfig& config,
                                                 MlpBias mlp_bias);
  static void WriteFrame(const model::ModelConfig& config, nlohmann::ordered_json& json);
  model::ModelConfig ReadFrame(ConfigReader& reader) const;

  // `attention_bias` of a class applies to q, k, v and o together.
  static void AddBiasObstacles(const model::MixerConfig& mixer, std::vector<std::string>& lines);
  static void ReadAttentionBias(ConfigReader& reader, model::MixerConfig& mixer);
  // Returns the biases of o of a model that has biases only of q, k and v.
  static std::vector<dist::ParamSpec> OutputBiases(const model::ModelConfig& config);

 private:
  Defaults defaults_;
};

// Names that differ in more than the prefix.
constexpr Renaming kLlamaNames[] = {
    {"embeddings.", "embed_tokens."},
    {".attn.", ".self_attn."},
    {".attn_norm.", ".input_layernorm."},
    {".mlp_norm.", ".post_attention_layernorm."},
};

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
  AddYarnObstacle(config, config.mixer, lines);
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

// Returns the window of each layer (0: all keys), or nothing if a layer differs from the model's
// mixer in more than its window.
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

// The Mistral class of `transformers`: Llama without biases, with a window of visible keys in all
// layers.

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

// The Qwen2 and Qwen3 classes of `transformers`: Llama with biases of q, k and v (Qwen2) or a norm
// of the heads of q and k (Qwen3). Some or all layers can have a window of visible keys.

constexpr int64_t kUsualFullLayers = 28;  // max_window_layers if config.json lacks the key.
constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

// Returns the layers that the config gives a window. `layer_types` wins over `max_window_layers`,
// the number of the first such layer.
model::LayerGroup SlidingLayers(ConfigReader& reader, int64_t num_layers) {
  const int64_t first = reader.Int("max_window_layers", kUsualFullLayers, /*min=*/0);
  if (auto sliding = ReadLayersOfType(reader, "layer_types", num_layers,
                                      {.other = {kFull}, .wanted = {kSliding}}))
    return {.layers = std::move(*sliding)};
  if (first < num_layers) return {.every = 1, .first = first};
  return {};
}

// Reads the windows of all layers. Layers with a window are a hybrid group, unless all have one.
void ReadWindows(ConfigReader& reader, model::ModelConfig& config) {
  const int64_t window = reader.Int("sliding_window", kUsualWindow);
  const bool in_use = reader.Bool("use_sliding_window", false) && !reader.IsNull("sliding_window");
  model::LayerGroup group = SlidingLayers(reader, config.num_layers);
  reader.Require(group.layers.empty() || in_use, "layer_types has ", kSliding,
                 ", but no window is in use. Set use_sliding_window to true and sliding_window to "
                 "the number of visible keys.");
  const bool none = group.layers.empty() && group.every == 0;
  if (none || !in_use) return;
  const bool all = group.every == 1
                       ? group.first == 0
                       : static_cast<int64_t>(group.layers.size()) == config.num_layers;
  if (all) return config.mixer.Set("window", window);
  group.mixer = config.mixer;
  group.mixer->Set("window", window);
  config.hybrid.push_back(std::move(group));
}

void WriteWindows(const model::ModelConfig& config, nlohmann::ordered_json& json) {
  const std::vector<int64_t> windows = WindowsOfLayers(config).value();
  const int64_t widest = *std::ranges::max_element(windows);
  // The layers from this one on have a window. Versions without layer_types read this number.
  const auto last_full = std::ranges::find(windows.rbegin(), windows.rend(), 0);
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const int64_t window : windows) types.push_back(window > 0 ? kSliding : kFull);
  json["use_sliding_window"] = widest > 0;
  json["sliding_window"] = nullptr;
  if (widest > 0) json["sliding_window"] = widest;
  json["max_window_layers"] = windows.rend() - last_full;
  json["layer_types"] = std::move(types);
}

void AddWindowObstacles(const model::ModelConfig& config, std::vector<std::string>& lines) {
  const auto windows = WindowsOfLayers(config);
  if (!windows) {
    lines.emplace_back("hybrid layers differ in more than the window");
    return;
  }
  const int64_t widest = *std::ranges::max_element(*windows);
  const auto other = std::ranges::find_if(
      *windows, [&](int64_t window) { return window != 0 && window != widest; });
  if (other != windows->end())
    lines.push_back(Concat("layers have the windows ", *other, " and ", widest,
                           ". Only one window is supported."));
}

// The parts that both classes share. A head_dim of 0 means hidden_size / num_attention_heads.
class Qwen : public LlamaFrame {
 public:
  explicit Qwen(int64_t head_dim)
      : LlamaFrame({.vocab_size = 151936,
                    .intermediate_size = 22016,
                    .num_kv_heads = 32,
                    .head_dim = head_dim,
                    .max_positions = 32768}) {}

 protected:
  static std::vector<std::string> QwenObstacles(const model::ModelConfig& config) {
    std::vector<std::string> lines = FrameObstacles(config, MlpBias::kOff);
    AddWindowObstacles(config, lines);
    return lines;
  }
  static void WriteQwen(const model::ModelConfig& config, nlohmann::ordered_json& json) {
    WriteFrame(config, json);
    WriteWindows(config, json);
  }
};

class Qwen2 : public Qwen {
 public:
  Qwen2() : Qwen(/*head_dim=*/0) {}

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = QwenObstacles(config);
    const model::MixerConfig& options = config.mixer;
    if (!options.Get<bool>("qkv_bias")) lines.emplace_back("qkv_bias is off");
    for (const char* option : {"qk_norm", "out_bias"})
      if (options.Get<bool>(option)) lines.emplace_back(Concat(option, " is on"));
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteQwen(config, json);
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFrame(reader);
    config.mixer.Set("qkv_bias", true);
    ReadWindows(reader, config);
    return config;
  }

  bool loads_byt5() const override { return false; }
  std::string TokenizerWarning() const override {
    return "AutoTokenizer reads a qwen2 folder with the rules of Qwen2's tokenizer and ignores "
           "those in tokenizer.json. If the rules differ, load it with "
           "PreTrainedTokenizerFast.from_pretrained.";
  }
};

class Qwen3 : public Qwen {
 public:
  Qwen3() : Qwen(/*head_dim=*/128) {}

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = QwenObstacles(config);
    const model::MixerConfig& options = config.mixer;
    if (!options.Get<bool>("qk_norm")) lines.emplace_back("qk_norm is off");
    AddBiasObstacles(options, lines);
    if (config.norm.Has("eps") &&
        options.Get<double>("qk_norm_eps") != config.norm.Get<double>("eps"))
      lines.push_back(Concat("qk_norm_eps is ", options.Get<double>("qk_norm_eps"),
                             ", and eps of the norm is ", config.norm.Get<double>("eps"),
                             ". Use one value for both."));
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteQwen(config, json);
    json["attention_bias"] = config.mixer.Get<bool>("qkv_bias");
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFrame(reader);
    config.mixer.Set("qk_norm", true);
    config.mixer.Set("qk_norm_eps", config.norm.Get<double>("eps"));
    ReadAttentionBias(reader, config.mixer);
    reader.Require(!reader.IsNull("head_dim"),
                   "head_dim is null. Set it to the width of a head, or remove the key (128).");
    ReadWindows(reader, config);
    return config;
  }

  std::vector<dist::ParamSpec> ZeroTensors(const model::ModelConfig& config) const override {
    return OutputBiases(config);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeLlama() { return std::make_unique<Llama>(); }
std::unique_ptr<Layout> MakeMistral() { return std::make_unique<Mistral>(); }
std::unique_ptr<Layout> MakeQwen2() { return std::make_unique<Qwen2>(); }
std::unique_ptr<Layout> MakeQwen3() { return std::make_unique<Qwen3>(); }

}  // namespace halflife::interop
