// Checkpoints of the D2D authors: classes in GPT-2's frame. config.json calls all of them gpt2, so
// they are distinguished by class name. "d2d" are classes with a GLU and without a position table;
// "d2d_ape" are classes with GPT-2's MLP and learned positions.
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// A part of a class name and its meaning. The old names are from the training script.
struct Variant {
  const char* piece;
  const char* feature_map;
  const char* decay;
  bool ape;
  double rope_theta = 0;
};
// The first entry that matches applies.
constexpr Variant kVariants[] = {
    {"EluWithRoPE", "elu", "none", false, 10000},
    {"ExpWithRoPE", "exp", "none", false, 10000},
    {"TrainingEluALiBi", "elu", "trained_alibi", false},
    {"EluWithD2D", "elu", "d2d", false},
    {"ExpWithD2D", "exp", "d2d", false},
    {"EluWithALiBi", "elu", "alibi", false},
    {"ExpWithALiBi", "exp", "alibi", false},
    {"EluWithVanillaAPE", "elu", "none", true},
    {"ExpWithVanillaAPE", "exp", "none", true},
    {"MoonStoneEluPlus", "elu", "d2d", false},
    {"MoonStoneEluALiBi", "elu", "alibi", false},
    {"MoonStoneALiBi", "exp", "alibi", false},
    {"EluGPT", "elu", "none", true},
};

std::string ClassName(ConfigReader& reader) {
  const nlohmann::json* classes = reader.Member("architectures");
  const bool one = classes != nullptr && classes->is_array() && classes->size() == 1 &&
                   classes->front().is_string();
  return one ? classes->front().get<std::string>() : "";
}

const Variant* ReadVariant(ConfigReader& reader, bool ape) {
  const std::string name = ClassName(reader);
  for (const Variant& variant : kVariants)
    if (variant.ape == ape && name.find(variant.piece) != std::string::npos) return &variant;
  std::string known;
  for (const Variant& variant : kVariants)
    if (variant.ape == ape) known += (known.empty() ? "" : ", ") + std::string(variant.piece);
  reader.Require(false, "architectures names '", name, "', which is not a known class. Only the ",
                 "class name selects the feature map, the decay and the rotation, so do not ",
                 "rename it: the weights would be read as another model. Known classes have ",
                 "one of these names in theirs: ", known);
  return nullptr;
}

class AuthorsD2d : public ImportOnlyLayout {
 public:
  std::string OptionalPrefix() const override { return kGpt2Prefix; }
  bool IsBuffer(const std::string& tensor, ConfigReader&) const override {
    return IsGpt2Mask(tensor);
  }

 protected:
  model::ModelConfig ReadFrame(ConfigReader& reader, bool ape) const {
    model::ModelConfig config = ReadGpt2Frame(reader);
    // The authors' attention does not read these keys.
    reader.Ignore({"scale_attn_weights", "scale_attn_by_inverse_layer_idx"});
    config.mixer = model::MixerConfig(mixer());
    config.mixer.Set("num_heads", ReadGpt2Heads(reader));
    if (const Variant* variant = ReadVariant(reader, ape)) {
      config.mixer.Set("feature_map", std::string(variant->feature_map));
      config.mixer.Set("decay", std::string(variant->decay));
      config.mixer.Set("rope_theta", variant->rope_theta);
      // The authors' code clamps growth at 0.
      if (config.mixer.Get<std::string>("decay") == "trained_alibi")
        config.mixer.Set("max_log_decay", 0.0);
      // A key of halflife: the authors' config does not contain the length of the rows.
      config.mixer.Set("legacy_view", reader.Int("legacy_view", 0, /*min=*/0));
    }
    return config;
  }
};

class D2d : public AuthorsD2d {
 public:
  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFrame(reader, /*ape=*/false);
    reader.Ignore({"n_positions", "max_position_embeddings", "activation_function"});
    const int64_t width = reader.Int("n_inner", 8 * config.model_dim / 3);
    config.channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", width}, {"bias", true}});
    return config;
  }

  // Renames the matrices of the GLU, which is fc3(fc1(x) silu(fc2(x))) in the authors' code.
  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    constexpr Renaming kGlu[] = {{"mlp.up_proj.", "glu.fc1."},
                                 {"mlp.gate_proj.", "glu.fc2."},
                                 {"mlp.down_proj.", "glu.fc3."}};
    return Gpt2Name(Renamed(parameter, kGlu));
  }
  // The GLU's matrices have the same layout as in halflife. RoPE rotates neighbouring channels in
  // the authors' code and halves of a head in halflife.
  Placement PlacementOf(const std::string& parameter, ConfigReader* reader) const override {
    const auto has = [&](const char* piece) { return parameter.find(piece) != std::string::npos; };
    if (has(".mlp.")) return {};
    Placement placement = Gpt2Placement(parameter);
    if ((has(".q_proj.") || has(".k_proj.")) && ReadVariant(*reader, /*ape=*/false)->rope_theta > 0)
      placement.pair_rows = ReadGpt2Width(*reader) / ReadGpt2Heads(*reader);
    return placement;
  }
};

class D2dApe : public AuthorsD2d {
 public:
  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFrame(reader, /*ape=*/true);
    ReadGpt2Mlp(reader, config);
    return config;
  }
  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return Gpt2Name(parameter);
  }
  Placement PlacementOf(const std::string& parameter, ConfigReader*) const override {
    return Gpt2Placement(parameter);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeD2d() { return std::make_unique<D2d>(); }
std::unique_ptr<Layout> MakeD2dApe() { return std::make_unique<D2dApe>(); }

}  // namespace halflife::interop
