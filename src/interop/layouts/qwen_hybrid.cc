// The hybrid Qwen classes of `transformers`: Qwen3.5 (the text model, also inside a model that sees
// images) and Qwen3-Next without experts. Layers of Gated DeltaNet alternate with gated softmax
// attention; norms are zero-centered.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "interop/layouts/gated_delta_hybrid.h"

namespace halflife::interop {
namespace {

constexpr double kUsualPart = 0.25;  // partial_rotary_factor if config.json lacks the key.

constexpr Renaming kQwenNames[] = {
    {"embeddings.", "embed_tokens."},
    {".attn_norm.", ".input_layernorm."},
    {".mlp_norm.", ".post_attention_layernorm."},
};
constexpr Renaming kQwenDeltaNames[] = {
    {".attn.", ".linear_attn."},
    {".o_norm.", ".norm."},
    {".o_proj.", ".out_proj."},
};

double EpsOf(const model::ModelConfig& config) {
  return config.norm.Has("eps") ? config.norm.Get<double>("eps") : 0;
}

// Returns the softmax layers that are written for a model without any. The class reads their sizes
// even if no layer uses them.
model::MixerConfig QwenAttention(double eps) {
  return model::MixerConfig("softmax", {{"num_heads", 4},
                                        {"head_dim", 64},
                                        {"qk_norm", true},
                                        {"qk_norm_eps", eps},
                                        {"qk_norm_zero_centered", true},
                                        {"output_gate", "sigmoid"},
                                        {"partial_rotary_factor", kUsualPart}});
}

// Returns the n for which the softmax layers are every n-th, or 0 if there is none.
int64_t IntervalOf(const model::ModelConfig& config) {
  int64_t first = 0;
  while (first < config.num_layers && !IsFullLayer(config, first)) ++first;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    if (IsFullLayer(config, layer) != ((layer + 1) % (first + 1) == 0)) return 0;
  return first + 1;
}

// The sizes of a Gated DeltaNet layer.
struct QwenDelta {
  int64_t num_heads, head_dim, values;  // Channels of v of the value heads of one head of q and k.
  int64_t group;                        // Value heads of one head of q and k.
  explicit QwenDelta(const model::MixerConfig& mixer)
      : num_heads(mixer.Get<int64_t>("num_heads")),
        head_dim(mixer.Get<int64_t>("head_dim")),
        values(std::llround(static_cast<double>(head_dim) * mixer.Get<double>("expand_v"))),
        group(mixer.Get<int64_t>("num_v_heads") / num_heads) {
    values *= group;
  }
};

class QwenHybrid : public GatedDeltaHybrid {
 public:
  explicit QwenHybrid(const Defaults& defaults, int64_t num_kv_heads)
      : defaults_(defaults), num_kv_heads_(num_kv_heads) {}
  PositionsKey positions_key() const override { return {.usual = 32768}; }
  bool needs_attention_to_cache() const override { return true; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(
        config,
        {.zero_centered_norm = true,
         .attention_options = {"qk_norm_zero_centered", "output_gate", "partial_rotary_factor"},
         .positions = RopeScalings()});
    std::ranges::copy(LayerObstacles(config), std::back_inserter(lines));
    RequireOptions("", config.mixer, {{"allow_neg_eigval", false}}, lines);
    const double eps = EpsOf(config);
    if (const auto own = config.mixer.Get<double>("norm_eps"); own != 0 && own != eps)
      lines.push_back(Concat("norm_eps is ", own, ", and eps of the norm is ", eps,
                             ". Use one value for both, or norm_eps 0."));
    const model::MixerConfig attention = AttentionOf(config, QwenAttention(eps));
    RequireOptions("in the softmax layers, ", attention,
                   {{"qk_norm", true},
                    {"qk_norm_zero_centered", true},
                    {"output_gate", "sigmoid"},
                    {"window", int64_t{0}}},
                   lines);
    if (attention.Get<bool>("qk_norm") && attention.Get<double>("qk_norm_eps") != eps)
      lines.push_back(Concat("qk_norm_eps is ", attention.Get<double>("qk_norm_eps"),
                             ", and eps of the norm is ", eps, ". Use one value for both."));
    if (attention.Get<double>("rope_theta") == 0) lines.emplace_back("q and k are not rotated");
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    WriteSizes(config, json);
    const model::MixerConfig attention = AttentionOf(config, QwenAttention(EpsOf(config)));
    json["num_attention_heads"] = attention.Get<int64_t>("num_heads");
    json["num_key_value_heads"] = attention.Get<int64_t>("num_kv_heads");
    json["head_dim"] = attention.Get<int64_t>("head_dim");
    json["attention_bias"] = attention.Get<bool>("qkv_bias");
    WriteRope(attention, config.positions, /*has_part=*/true, json);
    if (const int64_t interval = IntervalOf(config); interval > 0) {
      json["full_attention_interval"] = interval;
    } else {
      HL_WARN("interop", "export: the softmax layers are not every n-th layer. SGLang reads only ",
              "full_attention_interval, which cannot describe them. Use transformers or vLLM.");
    }
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadSizes(reader, defaults_);
    reader.Ignore({"attn_output_gate"});  // The class always has this gate.
    config.norm.Set("zero_centered", true);
    config.mixer = ReadDelta(
        reader, {.num_heads = 16, .num_v_heads = 32, .head_dim_k = 128, .head_dim_v = 128});
    model::MixerConfig attention = QwenAttention(config.norm.Get<double>("eps"));
    attention.Set("num_heads", reader.Int("num_attention_heads", defaults_.num_heads));
    attention.Set("num_kv_heads", reader.Int("num_key_value_heads", num_kv_heads_));
    attention.Set("head_dim", reader.Int("head_dim", 256));
    const bool bias = reader.Bool("attention_bias", false);
    attention.Set("qkv_bias", bias);
    attention.Set("out_bias", bias);
    ReadRope(reader,
             {.head_dim = attention.Get<int64_t>("head_dim"),
              .max_positions = reader.Int(positions_key().name, positions_key().usual, /*min=*/0),
              .usual_part = kUsualPart},
             attention, config.positions);
    const int64_t interval = reader.Int("full_attention_interval", 4);
    const std::vector<int64_t> full = ReadFullLayers(
        reader, config.num_layers, [&](int64_t layer) { return (layer + 1) % interval == 0; });
    if (full.empty()) {
      config.positions = model::PositionsConfig("none");  // No layer reads the rotation.
    } else {
      config.hybrid.push_back({.layers = full, .mixer = attention});
    }
    return config;
  }

  TensorPlace PlaceOf(const model::ModelConfig& config, const std::string& parameter,
                      ConfigReader*) const override {
    const auto [layer, of_layer, of_mixer] = ParseLayerParameter(parameter);
    if (of_mixer.empty()) return {.name = FlaName(Renamed(parameter, kQwenNames)), .placement = {}};
    const std::string prefix = FlaName(Concat("layers.", layer, "."));
    if (IsFullLayer(config, layer))
      return PlaceOfAttention(prefix + "self_attn.", of_mixer, config.mixer_of(layer));
    const TensorPlace place =
        PlaceOfDelta(prefix + "linear_attn.", of_mixer, QwenDelta(config.mixer_of(layer)));
    if (!place.name.empty()) return place;
    return {.name = FlaName(Renamed(parameter, kQwenDeltaNames)), .placement = {}};
  }

  // transformers reads a text model under either prefix.
  std::vector<std::string> OtherNames(const std::string& tensor) const override {
    constexpr std::string_view kModel = "model.";
    if (!tensor.starts_with(kModel)) return {};
    return {"model.language_model." + tensor.substr(kModel.size())};
  }
  // True for the tensors of the image encoder and of layers that predict several tokens.
  bool IsUnused(const std::string& tensor) const override {
    return tensor.starts_with("model.visual.") || tensor.starts_with("mtp.");
  }

 protected:
  // Returns an empty name for parameters that are tensors of their own.
  virtual TensorPlace PlaceOfDelta(const std::string& prefix, const std::string& parameter,
                                   const QwenDelta& sizes) const = 0;

  // The convolutions of q, k and v are one tensor in both classes.
  static TensorPlace PlaceOfConvolution(const std::string& prefix, const std::string& parameter,
                                        const QwenDelta& sizes) {
    const int64_t keys = sizes.num_heads * sizes.head_dim, values = sizes.num_heads * sizes.values;
    Placement placement = {.num_rows = 2 * keys + values};
    if (parameter == "k_conv1d.weight") placement.first_row = keys;
    if (parameter == "v_conv1d.weight") placement.first_row = 2 * keys;
    return {.name = prefix + "conv1d.weight", .placement = placement};
  }

 private:
  // The rows of q_proj are those of q and then those of the gate, for each head.
  static TensorPlace PlaceOfAttention(const std::string& prefix, const std::string& parameter,
                                      const model::MixerConfig& attention) {
    const bool gate = parameter.starts_with("g_proj.");
    if (!gate && !parameter.starts_with("q_proj."))
      return {.name = prefix + parameter, .placement = {}};
    const auto head_dim = attention.Get<int64_t>("head_dim");
    return {.name = prefix + "q_proj." + parameter.substr(std::string_view("q_proj.").size()),
            .placement = {.first_row = gate ? head_dim : 0,
                          .num_rows = 2 * head_dim,
                          .num_groups = attention.Get<int64_t>("num_heads")}};
  }

  Defaults defaults_;
  int64_t num_kv_heads_;
};

class Qwen3_5Text : public QwenHybrid {
 public:
  Qwen3_5Text()
      : QwenHybrid({.vocab_size = 248320,
                    .hidden_size = 4096,
                    .intermediate_size = 12288,
                    .num_layers = 32,
                    .num_heads = 16},
                   /*num_kv_heads=*/4) {}

 protected:
  TensorPlace PlaceOfDelta(const std::string& prefix, const std::string& parameter,
                           const QwenDelta& sizes) const override {
    if (parameter.ends_with("_conv1d.weight")) return PlaceOfConvolution(prefix, parameter, sizes);
    const int64_t keys = sizes.num_heads * sizes.head_dim, values = sizes.num_heads * sizes.values;
    const auto place = [&](int64_t first_row) -> TensorPlace {
      return {.name = prefix + "in_proj_qkv.weight",
              .placement = {.first_row = first_row, .num_rows = 2 * keys + values}};
    };
    if (parameter == "q_proj.weight") return place(0);
    if (parameter == "k_proj.weight") return place(keys);
    if (parameter == "v_proj.weight") return place(2 * keys);
    if (parameter == "g_proj.weight") return {.name = prefix + "in_proj_z.weight", .placement = {}};
    if (parameter == "b_proj.weight") return {.name = prefix + "in_proj_b.weight", .placement = {}};
    if (parameter == "a_proj.weight") return {.name = prefix + "in_proj_a.weight", .placement = {}};
    return {};
  }
};

// A published folder, whose model also sees images. Only its text model is read.
class Qwen3_5 : public Qwen3_5Text {
 public:
  std::string config_member() const override { return "text_config"; }
};

// Qwen3-Next. Published models have experts; the class also exists without.
class Qwen3Next : public QwenHybrid {
 public:
  Qwen3Next()
      : QwenHybrid({.vocab_size = 151936,
                    .hidden_size = 2048,
                    .intermediate_size = 5632,
                    .num_layers = 48,
                    .num_heads = 16},
                   /*num_kv_heads=*/2) {}

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    QwenHybrid::WriteConfig(config, json);
    json["num_experts"] = 0;
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = nlohmann::ordered_json::array();
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = QwenHybrid::ReadConfig(reader);
    reader.Ignore({"moe_intermediate_size", "shared_expert_intermediate_size",
                   "num_experts_per_tok", "norm_topk_prob", "output_router_logits",
                   "router_aux_loss_coef"});
    RequireDense(reader, config.num_layers);
    return config;
  }

 protected:
  TensorPlace PlaceOfDelta(const std::string& prefix, const std::string& parameter,
                           const QwenDelta& sizes) const override {
    if (parameter.ends_with("_conv1d.weight")) return PlaceOfConvolution(prefix, parameter, sizes);
    // For each head of q and k: its rows of q, of k, of v and of the gate.
    const auto place = [&](const char* name, int64_t first_row, int64_t num_rows) -> TensorPlace {
      return {.name = prefix + name,
              .placement = {
                  .first_row = first_row, .num_rows = num_rows, .num_groups = sizes.num_heads}};
    };
    const auto projection = [&](int64_t first_row) {
      return place("in_proj_qkvz.weight", first_row, 2 * (sizes.head_dim + sizes.values));
    };
    if (parameter == "q_proj.weight") return projection(0);
    if (parameter == "k_proj.weight") return projection(sizes.head_dim);
    if (parameter == "v_proj.weight") return projection(2 * sizes.head_dim);
    if (parameter == "g_proj.weight") return projection(2 * sizes.head_dim + sizes.values);
    if (parameter == "b_proj.weight") return place("in_proj_ba.weight", 0, 2 * sizes.group);
    if (parameter == "a_proj.weight")
      return place("in_proj_ba.weight", sizes.group, 2 * sizes.group);
    return {};
  }

 private:
  // Rejects layers with experts. If the config has experts, a layer has them unless one of two keys
  // excludes it.
  static void RequireDense(ConfigReader& reader, int64_t num_layers) {
    const int64_t num_experts = reader.Int("num_experts", 512, /*min=*/0);
    const int64_t step = reader.Int("decoder_sparse_step", 1);
    const nlohmann::json* excluded = reader.Member("mlp_only_layers");
    const bool is_list = excluded == nullptr || excluded->is_array();
    reader.Require(is_list, "mlp_only_layers is not a list. Use a list of numbers of layers.");
    if (num_experts == 0 || !is_list) return;
    for (int64_t layer = 0; layer < std::min(num_layers, kMaxLayers); ++layer) {
      const bool dense = (layer + 1) % step != 0 ||
                         (excluded != nullptr &&
                          std::ranges::find(*excluded, nlohmann::json(layer)) != excluded->end());
      if (dense) continue;
      reader.Require(false, "num_experts is ", num_experts, ", and layer ", layer,
                     " has experts. Use a model without experts (num_experts 0), or with all its "
                     "layers in mlp_only_layers.");
      return;
    }
  }
};

}  // namespace

std::unique_ptr<Layout> MakeQwen3_5Text() { return std::make_unique<Qwen3_5Text>(); }
std::unique_ptr<Layout> MakeQwen3_5() { return std::make_unique<Qwen3_5>(); }
std::unique_ptr<Layout> MakeQwen3Next() { return std::make_unique<Qwen3Next>(); }

}  // namespace halflife::interop
