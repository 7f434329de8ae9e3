// The delta-rule classes of flash-linear-attention (fla): DeltaNet, GatedDeltaNet,
// GatedDeltaProduct and KDA.
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// Writes the keys of the short convolution and of the range of beta.
void WriteDeltaKeys(const model::MixerConfig& options, nlohmann::ordered_json& json) {
  json["attn_mode"] = "chunk";
  WriteFlaShortConv(options, json);
  json["allow_neg_eigval"] = options.Get<bool>("allow_neg_eigval");
}

void ReadDeltaKeys(ConfigReader& reader, model::MixerConfig& options) {
  ReadFlaShortConv(reader, /*by_default=*/true, options);
  options.Set("allow_neg_eigval", reader.Bool("allow_neg_eigval", false));
}

// Writes the keys of the heads of GatedDeltaNet and KDA.
void WriteGatedDeltaHeads(const model::MixerConfig& options, nlohmann::ordered_json& json) {
  const auto num_heads = options.Get<int64_t>("num_heads"),
             num_v_heads = options.Get<int64_t>("num_v_heads");
  json["num_heads"] = num_heads;
  json["num_v_heads"] = nullptr;
  if (num_v_heads != num_heads) json["num_v_heads"] = num_v_heads;
  json["head_dim"] = options.Get<int64_t>("head_dim");
  json["expand_v"] = Number(options.Get<double>("expand_v"));
}

struct GatedDeltaDefaults {
  int64_t num_heads, head_dim;
  double expand_v;
};
void ReadGatedDeltaHeads(ConfigReader& reader, const GatedDeltaDefaults& defaults,
                         model::MixerConfig& options) {
  const int64_t num_heads = reader.Int("num_heads", defaults.num_heads);
  options.Set("num_heads", num_heads);
  options.Set("num_v_heads", reader.Int("num_v_heads", num_heads));
  options.Set("head_dim", reader.Int("head_dim", defaults.head_dim));
  options.Set("expand_v", reader.Double("expand_v", defaults.expand_v));
}

class DeltaNet : public FlaLayout {
 public:
  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    const auto activation = options.Get<std::string>("qk_activation");
    WriteDeltaKeys(options, json);
    json["num_heads"] = options.Get<int64_t>("num_heads");
    json["expand_k"] = Number(options.Get<double>("expand_k"));
    json["expand_v"] = Number(options.Get<double>("expand_v"));
    json["use_beta"] = options.Get<bool>("use_beta");
    json["use_gate"] = options.Get<bool>("use_output_gate");
    json["qk_norm"] = options.Get<std::string>("qk_norm");
    json["qk_activation"] = activation == "none" ? "identity" : activation;
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    model::MixerConfig& options = config.mixer;
    ReadDeltaKeys(reader, options);
    reader.Ignore({"use_output_norm"});  // The class always has the norm.
    options.Set("num_heads", reader.Int("num_heads", 16));
    options.Set("expand_k", reader.Double("expand_k", 1));
    options.Set("expand_v", reader.Double("expand_v", 1));
    options.Set("use_beta", reader.Bool("use_beta", true));
    options.Set("use_output_gate", reader.Bool("use_gate", false));
    options.Set("qk_norm", reader.String("qk_norm", "l2"));
    const std::string activation = reader.String("qk_activation", "silu");
    options.Set("qk_activation", activation == "identity" ? "none" : activation);
  }
};

class GatedDeltaNet : public FlaLayout {
 public:
  GatedDeltaNet() : FlaLayout({.num_layers = 21}) {}

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    const double eps = config.norm.Has("eps") ? config.norm.Get<double>("eps") : 0;
    if (const auto own = config.mixer.Get<double>("norm_eps"); own != 0 && own != eps)
      lines.push_back(Concat("norm_eps is ", own, ", and eps of the norm is ", eps,
                             ". Use one value for both, or norm_eps 0."));
    return lines;
  }

  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const auto gate = config.mixer.Get<std::string>("output_gate");
    WriteDeltaKeys(config.mixer, json);
    WriteGatedDeltaHeads(config.mixer, json);
    json["use_gate"] = gate != "none";
    json["output_gate_activation"] = gate == "sigmoid" ? "sigmoid" : "swish";
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    ReadDeltaKeys(reader, config.mixer);
    ReadGatedDeltaHeads(reader, {.num_heads = 6, .head_dim = 256, .expand_v = 2}, config.mixer);
    if (reader.Bool("use_gate", true)) {
      const std::string gate = reader.String("output_gate_activation", "swish");
      reader.Require(gate == "swish" || gate == "silu" || gate == "sigmoid",
                     "output_gate_activation is '", gate,
                     "'. Only swish, silu and sigmoid are supported.");
      config.mixer.Set("output_gate", gate == "sigmoid" ? "sigmoid" : "silu");
    } else {
      config.mixer.Set("output_gate", "none");
      reader.Ignore({"output_gate_activation"});
    }
  }
};

class GatedDeltaProduct : public FlaLayout {
 public:
  GatedDeltaProduct() : FlaLayout({.num_layers = 21}) {}

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    const auto num_heads = config.mixer.Get<int64_t>("num_heads"),
               num_v_heads = config.mixer.Get<int64_t>("num_v_heads");
    if (num_v_heads != num_heads)
      lines.push_back(Concat("num_v_heads is ", num_v_heads, ". Only num_heads, ", num_heads,
                             ", is supported."));
    if (config.hybrid.size() > 1)
      lines.emplace_back("the model has several groups of hybrid layers. Only one is supported.");
    return lines;
  }

  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    WriteDeltaKeys(options, json);
    json["num_heads"] = options.Get<int64_t>("num_heads");
    json["head_dim"] = options.Get<int64_t>("head_dim");
    json["expand_v"] = Number(options.Get<double>("expand_v"));
    json["use_output_gate"] = options.Get<bool>("use_output_gate");
    json["use_forget_gate"] = options.Get<bool>("use_forget_gate");
    json["num_householder"] = options.Get<int64_t>("num_householder");
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    model::MixerConfig& options = config.mixer;
    ReadDeltaKeys(reader, options);
    options.Set("num_heads", reader.Int("num_heads", 6));
    options.Set("head_dim", reader.Int("head_dim", 256));
    options.Set("expand_v", reader.Double("expand_v", 2));
    options.Set("use_output_gate", reader.Bool("use_output_gate", true));
    options.Set("use_forget_gate", reader.Bool("use_forget_gate", false));
    options.Set("num_householder", reader.Int("num_householder", 1));
  }
};

class Kda : public FlaLayout {
 public:
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    if (config.mixer.name() == mixer() && !config.mixer.Get<bool>("gate_bias"))
      lines.emplace_back("gate_bias is off");
    return lines;
  }

  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const auto bound = config.mixer.Get<double>("lower_bound");
    WriteDeltaKeys(config.mixer, json);
    WriteGatedDeltaHeads(config.mixer, json);
    json["safe_gate"] = bound < 0 && bound >= -5;  // selects a kernel for bounds in this range
    json["lower_bound"] = nullptr;
    if (bound < 0) json["lower_bound"] = Number(bound);
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    ReadDeltaKeys(reader, config.mixer);
    ReadGatedDeltaHeads(reader, {.num_heads = 16, .head_dim = 128, .expand_v = 1}, config.mixer);
    if (reader.Has("lower_bound")) {
      const double bound = reader.Double("lower_bound", 0);
      reader.Require(bound < 0, "lower_bound is ", bound,
                     ". Only null and numbers below 0 are supported.");
      config.mixer.Set("lower_bound", bound);
    }
    reader.Ignore({"safe_gate"});  // The formula depends only on lower_bound.
  }
};

}  // namespace

std::unique_ptr<Layout> MakeDeltaNet() { return std::make_unique<DeltaNet>(); }
std::unique_ptr<Layout> MakeGatedDeltaNet() { return std::make_unique<GatedDeltaNet>(); }
std::unique_ptr<Layout> MakeGatedDeltaProduct() { return std::make_unique<GatedDeltaProduct>(); }
std::unique_ptr<Layout> MakeKda() { return std::make_unique<Kda>(); }

}  // namespace halflife::interop
