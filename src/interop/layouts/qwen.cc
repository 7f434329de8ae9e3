// The Qwen2 and Qwen3 classes of `transformers`: Llama with biases of q, k and v (Qwen2) or a norm
// of the heads of q and k (Qwen3). Some or all layers can have a window of visible keys.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "interop/layouts/llama.h"

namespace halflife::interop {
namespace {

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
    if (options.Get<int64_t>("head_dim") * options.Get<int64_t>("num_heads") != config.model_dim)
      lines.emplace_back("head_dim is not model_dim / num_heads");
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

std::unique_ptr<Layout> MakeQwen2() { return std::make_unique<Qwen2>(); }
std::unique_ptr<Layout> MakeQwen3() { return std::make_unique<Qwen3>(); }

}  // namespace halflife::interop
