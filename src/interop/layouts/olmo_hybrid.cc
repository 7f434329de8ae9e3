// The OLMo Hybrid class of `transformers`: layers of Gated DeltaNet with a norm before each branch,
// and layers of softmax attention with a norm after each branch.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "interop/layouts/gated_delta_hybrid.h"

namespace halflife::interop {
namespace {

// eps of the norm of a Gated DeltaNet layer, which rms_norm_eps does not change.
constexpr double kDeltaNormEps = 1e-5;

// The rows of the convolutions of q, k and v are in one tensor while transformers runs the model.
constexpr const char* kConvolutions = ".linear_attn.conv1d.weight";

class OlmoHybrid : public GatedDeltaHybrid {
 public:
  PositionsKey positions_key() const override { return {.usual = 65536}; }
  bool loads_byt5() const override { return false; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(config, {.attention_options = {"qk_norm_over"},
                                                            .has_own_blocks = true,
                                                            .positions = RopeScalings()});
    std::ranges::copy(LayerObstacles(config), std::back_inserter(lines));
    int64_t num_full = 0;
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      const bool full = IsFullLayer(config, layer);
      num_full += full ? 1 : 0;
      const std::string& block = config.block_of(layer).name();
      const char* const wanted = full ? "output_norm" : "pre_norm";
      if (block != wanted)
        lines.push_back(Concat("the block of layer ", layer, ", ", config.mixer_of(layer).name(),
                               ", is ", block, ". Only ", wanted, " is supported."));
      if (block == "pre_norm" && !(config.block_of(layer) == model::BlockConfig("pre_norm")))
        lines.push_back(Concat("the block of layer ", layer, " has options. None are supported."));
    }
    if (num_full == 0 || num_full == config.num_layers)
      lines.emplace_back("the layers are all alike. The class needs both kinds.");
    const double eps = config.norm.Has("eps") ? config.norm.Get<double>("eps") : 0;
    const auto own = config.mixer.Get<double>("norm_eps");
    if ((own > 0 ? own : eps) != kDeltaNormEps)
      lines.push_back(Concat("norm_eps of gated_delta_net is ", own, ", and eps of the norm is ",
                             eps, ". Only norm_eps 1e-05 is supported."));
    const model::MixerConfig attention = AttentionOf(config, model::MixerConfig("softmax"));
    RequireOptions(
        "in the softmax layers, ", attention,
        {{"qk_norm", true}, {"qk_norm_over", std::string("all_heads")}, {"window", int64_t{0}}},
        lines);
    if (attention.Get<double>("qk_norm_eps") != eps)
      lines.push_back(Concat("qk_norm_eps is ", attention.Get<double>("qk_norm_eps"),
                             ", and eps of the norm is ", eps, ". Use one value for both."));
    if (attention.Get<double>("rope_theta") == 0 && config.positions.name() != "none")
      lines.push_back("positions " + config.positions.name() + " without rope_theta");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteSizes(config, json);
    const model::MixerConfig attention = AttentionOf(config, model::MixerConfig("softmax"));
    const auto num_heads = attention.Get<int64_t>("num_heads"),
               head_dim = attention.Get<int64_t>("head_dim");
    json["linear_allow_neg_eigval"] = config.mixer.Get<bool>("allow_neg_eigval");
    json["num_attention_heads"] = num_heads;
    json["num_key_value_heads"] = attention.Get<int64_t>("num_kv_heads");
    if (num_heads * head_dim != config.model_dim) json["head_dim"] = head_dim;
    json["attention_bias"] = attention.Get<bool>("qkv_bias");
    if (attention.Get<double>("rope_theta") > 0)
      return WriteRope(attention, config.positions, /*has_part=*/false, json);
    // An absent object, or null, would mean a rotation.
    json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", nullptr}};
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadSizes(reader, {.vocab_size = 100352,
                                                   .hidden_size = 3840,
                                                   .intermediate_size = 11008,
                                                   .num_layers = 32,
                                                   .num_heads = 30});
    // Initial values.
    reader.Ignore({"linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max",
                   "linear_dt_init_floor"});
    const int64_t num_heads = reader.Int("num_attention_heads", 30);
    ReadDeltaLayers(reader, num_heads, config);
    model::MixerConfig attention("softmax", {{"num_heads", num_heads},
                                             {"qk_norm", true},
                                             {"qk_norm_over", "all_heads"},
                                             {"qk_norm_eps", config.norm.Get<double>("eps")}});
    attention.Set("num_kv_heads", reader.Int("num_key_value_heads", num_heads));
    attention.Set("head_dim",
                  reader.Int("head_dim", std::max<int64_t>(1, config.model_dim / num_heads)));
    const bool bias = reader.Bool("attention_bias", false);
    attention.Set("qkv_bias", bias);
    attention.Set("out_bias", bias);
    ReadRotation(reader, config, attention);
    std::vector<int64_t> full =
        ReadFullLayers(reader, config.num_layers, [](int64_t layer) { return layer % 4 == 3; });
    if (full.empty() && !reader.Has("layer_types")) full.push_back(config.num_layers - 1);
    const auto num_full = static_cast<int64_t>(full.size());
    reader.Require(num_full > 0 && num_full < config.num_layers, "layer_types has ", num_full,
                   " of ", config.num_layers, " layers of full_attention. Use a model that has ",
                   "full_attention and linear_attention.");
    if (num_full > 0)
      config.hybrid.push_back(
          {.layers = full, .mixer = attention, .block = model::BlockConfig("output_norm")});
    return config;
  }

  TensorPlace PlaceOf(const model::ModelConfig& config, const std::string& parameter,
                      ConfigReader* reader) const override {
    const int64_t layer = ParseLayerParameter(parameter).layer;
    if (layer < 0 || !IsFullLayer(config, layer))
      return PlaceOutsideAttention(config, parameter, reader);
    static constexpr Renaming kNames[] = {{".attn.", ".self_attn."},
                                          {".attn_norm.", ".post_attention_layernorm."},
                                          {".mlp_norm.", ".post_feedforward_layernorm."}};
    return {.name = FlaName(Renamed(parameter, kNames)), .placement = {}};
  }

  // save_pretrained of transformers 5.23 renames norms.
  std::vector<std::string> OtherNames(const std::string& tensor) const override {
    static constexpr Renaming kNames[] = {
        {".input_layernorm.", ".attention_layer_norm."},
        {".post_attention_layernorm.", ".feedforward_layer_norm."}};
    return {Renamed(tensor, kNames)};
  }
  // It also divides the convolutions into three tensors of equal size, even if q, k and v have
  // other sizes. One after the other, the three have the same rows in either case.
  std::vector<std::string> PiecesOf(const std::string& tensor) const override {
    if (!tensor.ends_with(kConvolutions)) return {};
    std::vector<std::string> pieces;
    for (const char* piece : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
      const Renaming name = {"conv1d", piece};
      pieces.push_back(Renamed(tensor, {&name, 1}));
    }
    return pieces;
  }

 private:
  static void ReadDeltaLayers(ConfigReader& reader, int64_t num_heads, model::ModelConfig& config) {
    const int64_t num_key_heads = reader.Int("linear_num_key_heads", num_heads);
    config.mixer = ReadDelta(
        reader, {.num_heads = num_heads,
                 .num_v_heads = num_heads,
                 .head_dim_k = std::max<int64_t>(1, 3 * config.model_dim / (4 * num_key_heads)),
                 .head_dim_v = 0});
    config.mixer.Set("allow_neg_eigval", reader.Bool("linear_allow_neg_eigval", true));
    config.mixer.Set("norm_eps", kDeltaNormEps);
  }

  // Reads rope_theta from the object of the rotation or, if that has none, from the top level. null
  // means no rotation, and the default is 10000.
  static void ReadRotation(ConfigReader& reader, model::ModelConfig& config,
                           model::MixerConfig& attention) {
    const nlohmann::json* object = reader.Member("rope_scaling");
    if (object == nullptr || object->empty()) object = reader.Member("rope_parameters");
    const bool inside = object != nullptr && object->is_object() && object->contains("rope_theta");
    const bool none = inside ? object->at("rope_theta").is_null() : reader.IsNull("rope_theta");
    if (none) {
      reader.Ignore({"rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings"});
      return attention.Set("rope_theta", 0.0);
    }
    ReadRope(reader,
             {.head_dim = attention.Get<int64_t>("head_dim"),
              .max_positions = reader.Int("max_position_embeddings", 65536, /*min=*/0)},
             attention, config.positions);
  }

  // Returns the places of parameters of Gated DeltaNet layers and of the model. Export writes three
  // convolutions; import reads their rows as one tensor.
  static TensorPlace PlaceOutsideAttention(const model::ModelConfig& config,
                                           const std::string& parameter, ConfigReader* reader) {
    static constexpr Renaming kNames[] = {{"embeddings.", "embed_tokens."},
                                          {".attn.", ".linear_attn."},
                                          {".attn_norm.", ".input_layernorm."},
                                          {".mlp_norm.", ".post_attention_layernorm."}};
    const std::string name = FlaName(Renamed(parameter, kNames));
    const auto [layer, of_layer, of_mixer] = ParseLayerParameter(parameter);
    if (reader == nullptr || !of_mixer.ends_with("_conv1d.weight"))
      return {.name = name, .placement = {}};
    const model::MixerConfig& delta = config.mixer_of(layer);
    const auto head_dim = delta.Get<int64_t>("head_dim");
    const int64_t keys = delta.Get<int64_t>("num_heads") * head_dim,
                  values =
                      delta.Get<int64_t>("num_v_heads") *
                      std::llround(static_cast<double>(head_dim) * delta.Get<double>("expand_v"));
    const int64_t part = of_mixer[0] == 'q' ? 0 : of_mixer[0] == 'k' ? 1 : 2;
    return {.name = FlaName(Concat("layers.", layer, kConvolutions)),
            .placement = {.first_row = part * keys, .num_rows = 2 * keys + values}};
  }
};

}  // namespace

std::unique_ptr<Layout> MakeOlmoHybrid() { return std::make_unique<OlmoHybrid>(); }

}  // namespace halflife::interop
