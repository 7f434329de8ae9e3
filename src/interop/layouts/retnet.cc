// fla's RetNet: retention with rotary positions of base 10000, a norm per head and a SiLU gate.
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

constexpr int64_t kMaxRotaryDim = 256;  // Limit of fla's rotary kernel.

class RetNet : public Layout {
 public:
  std::string model_type() const override { return "retnet"; }
  std::string class_name() const override { return "RetNetForCausalLM"; }
  std::string mixer() const override { return "retention"; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = FlaObstacles(config);
    const model::MixerConfig& options = config.mixer;
    if (options.Get<double>("rope_theta") != 10000)
      lines.push_back(Concat("rope_theta is ", options.Get<double>("rope_theta"),
                             ". Only 10000 is supported."));
    const double head_dim = static_cast<double>(config.model_dim) *
                            options.Get<double>("expand_k") /
                            static_cast<double>(options.Get<int64_t>("num_heads"));
    if (head_dim > kMaxRotaryDim)
      lines.push_back(Concat("key width per head is ", head_dim, ". Only up to ", kMaxRotaryDim,
                             " is supported."));
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteFlaFrame(config, json);
    WriteFlaLinear(config.mixer, ActivationNames::kTransformers, json);
    json["use_short_conv"] = false;
    json["conv_size"] = 4;
    json["attn"] = FlaHybrid(config);
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFlaFrame(reader, {.hidden_ratio = 2});
    config.mixer = model::MixerConfig(mixer());
    ReadFlaLinear(reader, config.mixer, /*num_heads=*/8, /*expand_k=*/1, /*expand_v=*/2,
                  ActivationNames::kTransformers);
    reader.Ignore({"use_short_conv", "conv_size"});  // The class never passes them to its layer.
    ReadFlaHybrid(reader, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override {
    return FlaLinearName(parameter, reader);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeRetNet() { return std::make_unique<RetNet>(); }

}  // namespace halflife::interop
