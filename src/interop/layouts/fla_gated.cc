// Classes of flash-linear-attention (fla) with gated states: HGRN2 and GSA.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

void WriteGatedKeys(const model::MixerConfig& options, nlohmann::ordered_json& json) {
  WriteFlaShortConv(options, json);
  json["elementwise_affine"] = options.Get<bool>("norm_affine");
}

void ReadGatedKeys(ConfigReader& reader, model::MixerConfig& options) {
  ReadFlaShortConv(reader, /*by_default=*/false, options);
  ReadFlaAffine(reader, options);
}

class Hgrn2 : public FlaLayout {
 public:
  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const auto num_heads = config.mixer.Get<int64_t>("num_heads");
    json["attn_mode"] = "chunk";
    json["num_heads"] = num_heads;
    json["expand_ratio"] = config.model_dim / num_heads;
    WriteGatedKeys(config.mixer, json);
    json["use_lower_bound"] = config.mixer.Get<bool>("use_lower_bound");
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    model::MixerConfig& options = config.mixer;
    ReadHeads(reader, config);
    ReadGatedKeys(reader, options);
    options.Set("use_lower_bound", reader.Bool("use_lower_bound", true));
  }

  // The class declares bounds even if no layer reads them: those of layer 0 are constant 0.
  bool IsUnused(const std::string& tensor) const override { return tensor == "model.lower_bounds"; }
  std::vector<dist::ParamSpec> ZeroTensors(const model::ModelConfig& config) const override {
    if (!config.mixer.Get<bool>("use_lower_bound")) return {};
    for (int64_t layer = 1; layer < config.num_layers; ++layer)
      if (config.mixer_of(layer).name() == mixer()) return {};
    return {{.name = "lower_bounds", .shape = {config.num_layers, config.model_dim}}};
  }

 private:
  // expand_ratio is the width of a head. If it is null, num_heads counts.
  static void ReadHeads(ConfigReader& reader, model::ModelConfig& config) {
    const bool has_ratio = reader.Has("expand_ratio") || !reader.IsNull("expand_ratio");
    if (!has_ratio) {
      reader.Require(reader.Has("num_heads"), "expand_ratio and num_heads are null. Set one.");
      config.mixer.Set("num_heads", reader.Int("num_heads", 1));
      return;
    }
    const int64_t ratio = reader.Int("expand_ratio", 128);
    reader.Ignore({"num_heads"});
    const bool fits = config.model_dim % ratio == 0;
    reader.Require(fits, "expand_ratio ", ratio, " does not divide hidden_size ", config.model_dim,
                   ". Only divisors are supported.");
    if (fits) config.mixer.Set("num_heads", config.model_dim / ratio);
  }
};

// q and k share one feature map, which halflife counts among q's.
constexpr Renaming kSharedMap[] = {{".feature_map_q.", ".feature_map."}};

class Gsa : public FlaLayout {
 public:
  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    const auto expand_v = config.mixer.Get<double>("expand_v"),
               normaliser = config.mixer.Get<double>("gate_normaliser");
    if (expand_v != 1) lines.push_back(Concat("expand_v is ", expand_v, ". Only 1 is supported."));
    if (!IsWholeNumber(normaliser))
      lines.push_back(
          Concat("gate_normaliser is ", normaliser, ". Only whole numbers are supported."));
    return lines;
  }

  void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    const auto map = options.Get<std::string>("feature_map");
    WriteFlaHeads(options, json);
    json["num_slots"] = options.Get<int64_t>("num_slots");
    json["feature_map"] = map == "silu" ? "swish" : map;
    json["gate_logit_normalizer"] = Number(options.Get<double>("gate_normaliser"));
    WriteGatedKeys(options, json);
  }

  void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const override {
    model::MixerConfig& options = config.mixer;
    // The class's arguments are misspelt. A key in the usual spelling takes precedence.
    ReadFlaHeads(reader, options, /*num_heads=*/4, reader.Double("exapnd_k", 1),
                 reader.Double("exapnd_v", 1));
    const double expand_v = options.Get<double>("expand_v");
    reader.Require(expand_v == 1, "expand_v is ", expand_v, ". Only 1 is supported.");
    options.Set("num_slots", reader.IsNull("num_slots") ? SlotsOfHeads(reader, config)
                                                        : reader.Int("num_slots", 64));
    const std::string map = reader.String("feature_map", "swish");
    reader.Require(map == "swish" || map == "relu" || map == "t2r", "feature_map is '", map,
                   "'. Only swish, relu and t2r are supported.");
    options.Set("feature_map", map == "swish" ? "silu" : map);
    options.Set("gate_normaliser", reader.Double("gate_logit_normalizer", 8));
    ReadGatedKeys(reader, options);
    reader.Ignore({"use_output_gate", "use_norm", "clamp_min", "clamp_max"});  // never read
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return Renamed(FlaName(parameter), kSharedMap);
  }

 private:
  // Returns the default of num_slots in the class: as many slots as key channels per head.
  static int64_t SlotsOfHeads(ConfigReader& reader, const model::ModelConfig& config) {
    reader.Ignore({"num_slots"});
    const double width =
        static_cast<double>(config.model_dim) * config.mixer.Get<double>("expand_k");
    return std::max<int64_t>(1, std::llround(width) / config.mixer.Get<int64_t>("num_heads"));
  }
};

}  // namespace

std::unique_ptr<Layout> MakeHgrn2() { return std::make_unique<Hgrn2>(); }
std::unique_ptr<Layout> MakeGsa() { return std::make_unique<Gsa>(); }

}  // namespace halflife::interop
