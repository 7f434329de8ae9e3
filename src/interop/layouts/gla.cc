// fla's GLA: gated linear attention. The gate's inner rank and its normaliser are constants in both
// programs. Unlike RetNet's, its feature map is looked up in fla's own table.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

constexpr int64_t kConvSize = 4;  // Default of the class.

class Gla : public Layout {
 public:
  std::string model_type() const override { return "gla"; }
  std::string class_name() const override { return "GLAForCausalLM"; }
  std::string mixer() const override { return "gla"; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    const std::vector<std::string> named = NamedActivations(ActivationNames::kFla);
    const auto map = config.mixer.Get<std::string>("feature_map");
    if (map != "none" && std::ranges::find(named, map) == named.end())
      lines.push_back(
          Concat("feature_map is ", map, ". Only none, ", Join(named, ", "), " are supported."));
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const model::MixerConfig& options = config.mixer;
    WriteFlaFrame(config, json);
    WriteFlaLinear(options, ActivationNames::kFla, json);
    json["use_short_conv"] = options.Get<bool>("use_short_conv");
    json["conv_size"] =
        options.Get<bool>("use_short_conv") ? options.Get<int64_t>("conv_size") : kConvSize;
    json["clamp_min"] = nullptr;
    if (std::isfinite(options.Get<double>("clamp_min")))
      json["clamp_min"] = Number(options.Get<double>("clamp_min"));
    json["use_gk"] = true;
    json["use_gv"] = false;
    json["attn"] = FlaHybrid(config);
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFlaFrame(reader, {});
    config.mixer = model::MixerConfig(mixer());
    ReadFlaLinear(reader, config.mixer, /*num_heads=*/4, /*expand_k=*/0.5, /*expand_v=*/1,
                  ActivationNames::kFla);
    const bool use_short_conv = reader.Bool("use_short_conv", false);
    config.mixer.Set("use_short_conv", use_short_conv);
    if (use_short_conv) {
      config.mixer.Set("conv_size", reader.Int("conv_size", kConvSize, 2));
    } else {
      reader.Ignore({"conv_size"});
    }
    if (reader.Has("clamp_min")) config.mixer.Set("clamp_min", reader.Double("clamp_min", 0));
    reader.Ignore({"use_gk", "use_gv"});  // The class never reads them.
    ReadFlaHybrid(reader, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override {
    return FlaLinearName(parameter, reader);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeGla() { return std::make_unique<Gla>(); }

}  // namespace halflife::interop
