// The Kimi Linear class of `transformers`: Kimi Delta Attention in most layers, multi-head latent
// attention without positions in the others. Only dense models are supported: each layer has an MLP
// in place of experts. vLLM and SGLang read other keys than transformers, so export writes both.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

using nlohmann::ordered_json;

constexpr const char* kKimiLinear = "linear_attention";
constexpr const char* kKimiFull = "full_attention";
constexpr const char* kKimiDense = "dense";
constexpr int64_t kKimiUsualEvery =
    4;  // Every fourth layer is full unless config.json says otherwise.

constexpr Renaming kKimiNames[] = {
    {"embeddings.", "embed_tokens."},     {".attn.", ".self_attn."},
    {".attn_norm.", ".input_layernorm."}, {".mlp_norm.", ".post_attention_layernorm."},
    {".f_proj.0.", ".f_a_proj."},         {".f_proj.1.", ".f_b_proj."},
    {".g_proj.0.", ".g_a_proj."},         {".g_proj.1.", ".g_b_proj."},
};
constexpr const char* kKimiMlp = ".mlp.";
constexpr const char* kKimiMlpOfTransformers = ".block_sparse_moe.";

// Adds the options of kda that the class cannot express.
void AddKdaObstacles(const model::MixerConfig& kda, std::vector<std::string>& lines) {
  if (kda.Get<int64_t>("num_v_heads") != kda.Get<int64_t>("num_heads"))
    lines.emplace_back("num_v_heads of kda is not num_heads");
  if (kda.Get<double>("expand_v") != 1)
    lines.push_back(
        Concat("expand_v of kda is ", kda.Get<double>("expand_v"), ". Only 1 is supported."));
  if (!kda.Get<bool>("use_short_conv")) lines.emplace_back("use_short_conv of kda is off");
  if (kda.Get<bool>("allow_neg_eigval")) lines.emplace_back("allow_neg_eigval of kda is on");
  if (kda.Get<double>("lower_bound") != 0)
    lines.push_back(
        Concat("lower_bound of kda is ", kda.Get<double>("lower_bound"), ". Only 0 is supported."));
  if (kda.Get<bool>("gate_bias"))
    lines.emplace_back("gate_bias of kda is on, and the class has no such bias");
}

// Returns the numbers of the layers with latent attention.
std::vector<int64_t> KimiFullLayers(const model::ModelConfig& config) {
  std::vector<int64_t> full;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    if (config.mixer_of(layer).name() == "mla") full.push_back(layer);
  return full;
}

// Returns the mla of the model, or that of the defaults if no layer has one.
model::MixerConfig KimiLatentAttention(const model::ModelConfig& config) {
  const std::vector<int64_t> full = KimiFullLayers(config);
  return full.empty() ? model::MixerConfig("mla") : config.mixer_of(full.front());
}

// Reads the layers in `list` of linear_attn_config, which counts layers from 1.
std::vector<int64_t> ReadKimiNumbers(ConfigReader& reader, const char* key, int64_t num_layers) {
  const nlohmann::json* list = reader.Member(key);
  const bool valid = list != nullptr && list->is_array() &&
                     std::ranges::all_of(*list, [&](const nlohmann::json& layer) {
                       return layer.is_number_integer() && layer >= 1 && layer <= num_layers;
                     });
  reader.Require(valid, key, " is not a list of layers. Use numbers from 1 to ", num_layers, ".");
  std::vector<int64_t> layers;
  if (valid)
    for (const nlohmann::json& layer : *list) layers.push_back(layer.get<int64_t>() - 1);
  return layers;
}

// Returns the layers in full_attn_layers. Requires that each layer is in one of the two lists.
model::LayerGroup ReadKimiLists(ConfigReader& reader, int64_t num_layers) {
  model::LayerGroup full = {.layers = ReadKimiNumbers(reader, "full_attn_layers", num_layers)};
  std::ranges::sort(full.layers);
  std::vector<int64_t> all = ReadKimiNumbers(reader, "kda_layers", num_layers);
  all.insert(all.end(), full.layers.begin(), full.layers.end());
  std::ranges::sort(all);
  const bool each_once = static_cast<int64_t>(all.size()) == num_layers &&
                         std::ranges::adjacent_find(all) == all.end();
  reader.Require(each_once, "kda_layers and full_attn_layers do not name each of the ", num_layers,
                 " layers once. Correct the lists.");
  return full;
}

// Reads linear_attn_config, whose sizes win over the linear_* keys, and returns the layers with
// latent attention, an empty group if there are none. layer_types wins over the lists of
// linear_attn_config.
model::LayerGroup ReadKimiLayers(ConfigReader& reader, int64_t num_layers,
                                 model::MixerConfig& kda) {
  kda.Set("head_dim", reader.Int("linear_head_dim", 128));
  kda.Set("num_heads", reader.Int("linear_num_heads", 32));
  kda.Set("conv_size", reader.Int("linear_conv_kernel_dim", 4));
  model::LayerGroup full;
  // A pattern takes no memory, even if num_layers of a corrupt folder is huge.
  if (num_layers > kKimiUsualEvery) full = {.every = kKimiUsualEvery, .first = kKimiUsualEvery};
  if (const nlohmann::json* nested = reader.Member("linear_attn_config")) {
    reader.Require(nested->is_object(),
                   "linear_attn_config is not an object. Use one, or remove the key.");
    if (!nested->is_object()) return full;
    ConfigReader inner(*nested, "linear_attn_config");
    kda.Set("head_dim", inner.Int("head_dim", kda.Get<int64_t>("head_dim")));
    kda.Set("num_heads", inner.Int("num_heads", kda.Get<int64_t>("num_heads")));
    kda.Set("conv_size", inner.Int("short_conv_kernel_size", kda.Get<int64_t>("conv_size")));
    const bool lists = inner.Has("full_attn_layers") && inner.Has("kda_layers");
    if (lists && !reader.Has("layer_types")) full = ReadKimiLists(inner, num_layers);
    inner.Ignore({"full_attn_layers", "kda_layers"});
    reader.Absorb(inner);
  }
  if (auto listed = ReadLayersOfType(reader, "layer_types", num_layers,
                                     {.other = {kKimiLinear}, .wanted = {kKimiFull}}))
    full = {.layers = std::move(*listed)};
  return full;
}

// Requires that no layer has experts. mlp_layer_types wins over first_k_dense_replace.
void RequireDenseKimi(ConfigReader& reader, int64_t num_layers) {
  const int64_t num_dense = reader.Int("first_k_dense_replace", 1, /*min=*/0);
  if (reader.Has("mlp_layer_types")) {
    const std::vector<int64_t> sparse =
        ReadLayersOfType(reader, "mlp_layer_types", num_layers,
                         {.other = {kKimiDense}, .wanted = {"sparse"}})
            .value_or(std::vector<int64_t>());
    reader.Require(sparse.empty(), "mlp_layer_types has sparse for ", sparse.size(), " of ",
                   num_layers,
                   " layers, which then have experts. Use a model whose layers are all "
                   "dense.");
  } else {
    reader.Require(num_dense >= num_layers, "first_k_dense_replace is ", num_dense, ", so layers ",
                   num_dense, " to ", num_layers - 1,
                   " have experts. Use a model whose layers are all dense.");
  }
  reader.Ignore({"moe_intermediate_size", "num_experts", "num_local_experts", "num_experts_per_tok",
                 "num_experts_per_token", "n_shared_experts", "num_shared_experts", "n_group",
                 "num_expert_group", "topk_group", "use_grouped_topk", "norm_topk_prob",
                 "moe_renormalize", "moe_layer_freq", "moe_router_activation_func",
                 "routed_scaling_factor", "output_router_logits"});
}

// Refuses keys of the engines' class that change what a model computes.
void RefuseKimiK3Keys(ConfigReader& reader) {
  for (const char* key : {"attn_res_block_size", "routed_expert_hidden_size", "mla_use_output_gate",
                          "activation_situ_beta"}) {
    const nlohmann::json* value = reader.Member(key);
    reader.Require(value == nullptr || *value == false, key,
                   " is set, which transformers 5.23 does not have. Only null is supported.");
  }
  reader.Require(reader.Bool("mla_use_nope", true),
                 "mla_use_nope is false. Only attention without positions is supported.");
  reader.Require(reader.Int("num_nextn_predict_layers", 0, /*min=*/0) == 0,
                 "num_nextn_predict_layers is not 0. Use a model without such layers.");
}

class KimiLinear : public Layout {
 public:
  PositionsKey positions_key() const override {
    return {.usual = 1048576, .other_name = "model_max_length"};
  }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(config, {});
    if (config.mixer.name() != mixer()) return lines;
    AddKdaObstacles(config.mixer, lines);
    const model::MixerConfig mla = KimiLatentAttention(config);
    for (const model::LayerGroup& group : config.hybrid) {
      if (!group.mixer || *group.mixer == config.mixer) continue;
      if (group.mixer->name() != "mla") {
        lines.push_back("hybrid layers have the mixer " + group.mixer->name() +
                        ". Only mla is supported.");
      } else if (!(*group.mixer == mla)) {
        lines.emplace_back("hybrid layers have different options of mla");
      }
    }
    if (!KimiFullLayers(config).empty() && mla.Get<double>("rope_theta") != 0)
      lines.push_back(
          Concat("rope_theta of mla is ", mla.Get<double>("rope_theta"), ". Only 0 is supported."));
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, ordered_json& json) const override {
    json["hidden_size"] = config.model_dim;
    json["intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
    json["num_hidden_layers"] = config.num_layers;
    json["hidden_act"] = "silu";
    json["rms_norm_eps"] = config.norm.Get<double>("eps");
    WriteKimiLatent(KimiLatentAttention(config), json);
    WriteLayers(config, json);
    json["mlp_layer_types"] =
        std::vector<std::string>(static_cast<size_t>(config.num_layers), kKimiDense);
    json["first_k_dense_replace"] = config.num_layers;
    json["moe_layer_freq"] = 1;
    json["moe_intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
    json["moe_renormalize"] = true;
    json["moe_router_activation_func"] = "sigmoid";
    for (const char* key : {"num_experts", "num_experts_per_token", "num_shared_experts",
                            "num_expert_group", "topk_group"})
      json[key] = 1;
    json["routed_scaling_factor"] = 1.0;
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    // The class has no positions, ignores ties, and computes head_dim and qk_head_dim itself.
    reader.Ignore({"attention_dropout", "pretraining_tp", "tie_word_embeddings", "head_dim",
                   "qk_head_dim", "rope_theta", "rope_scaling", "rope_parameters"});
    RefuseKimiK3Keys(reader);
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 163840);
    config.model_dim = reader.Int("hidden_size", 2304);
    config.channel_mixer.Set("width", reader.Int("intermediate_size", 9216));
    config.num_layers = reader.Int("num_hidden_layers", 27);
    config.norm.Set("eps", reader.Double("rms_norm_eps", 1e-5));
    config.initializer_range = reader.Double("initializer_range", 0.02);
    RequireSwish(reader, "silu");
    RequireDenseKimi(reader, config.num_layers);
    config.mixer = model::MixerConfig(mixer());
    config.mixer.Set("gate_bias", false);
    model::LayerGroup full = ReadKimiLayers(reader, config.num_layers, config.mixer);
    full.mixer = ReadLatentAttention(reader);
    if (full.every > 0 || !full.layers.empty()) config.hybrid.push_back(std::move(full));
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    return FlaName(Renamed(parameter, kKimiNames));
  }
  Placement PlacementOf(const std::string& parameter, ConfigReader*) const override {
    if (parameter.ends_with(".A_log")) return {.leading_ones = 2, .trailing_ones = 1};
    return {};
  }
  std::vector<std::string> OtherNames(const std::string& tensor) const override {
    const Renaming dense[] = {{kKimiMlp, kKimiMlpOfTransformers}};
    return {Renamed(tensor, dense)};
  }
  bool can_tie() const override { return false; }
  bool needs_attention_to_cache() const override { return true; }
  bool loads_byt5() const override { return false; }

 private:
  static void WriteKimiLatent(const model::MixerConfig& mla, ordered_json& json) {
    json["num_attention_heads"] = mla.Get<int64_t>("num_heads");
    json["num_key_value_heads"] = mla.Get<int64_t>("num_heads");
    json["q_lora_rank"] = nullptr;
    if (const auto rank = mla.Get<int64_t>("q_lora_rank"); rank > 0) json["q_lora_rank"] = rank;
    for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
      json[key] = mla.Get<int64_t>(key);
    json["mla_use_nope"] = true;
    json["attention_bias"] = mla.Get<bool>("bias");
    json["attention_dropout"] = 0.0;
  }

  static model::MixerConfig ReadLatentAttention(ConfigReader& reader) {
    model::MixerConfig mla("mla");
    const int64_t num_heads = reader.Int("num_attention_heads", 32);
    const int64_t num_kv_heads = reader.Int("num_key_value_heads", num_heads);
    reader.Require(num_kv_heads == num_heads, "num_key_value_heads is ", num_kv_heads,
                   ", but the class makes a key for each of the ", num_heads, " heads. Set it to ",
                   num_heads, ".");
    mla.Set("num_heads", num_heads);
    mla.Set("kv_lora_rank", reader.Int("kv_lora_rank", 512));
    mla.Set("q_lora_rank", reader.Int("q_lora_rank", 0));
    mla.Set("qk_nope_head_dim", reader.Int("qk_nope_head_dim", 128));
    mla.Set("qk_rope_head_dim", reader.Int("qk_rope_head_dim", 64));
    mla.Set("v_head_dim", reader.Int("v_head_dim", 128));
    mla.Set("rope_theta", 0);
    mla.Set("bias", reader.Bool("attention_bias", false));
    return mla;
  }

  static void WriteLayers(const model::ModelConfig& config, ordered_json& json) {
    const auto head_dim = config.mixer.Get<int64_t>("head_dim"),
               num_heads = config.mixer.Get<int64_t>("num_heads"),
               conv_size = config.mixer.Get<int64_t>("conv_size");
    json["linear_head_dim"] = head_dim;
    json["linear_num_heads"] = num_heads;
    json["linear_conv_kernel_dim"] = conv_size;
    ordered_json types = ordered_json::array(), kda = types, full = types;
    const std::vector<int64_t> full_layers = KimiFullLayers(config);
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      const bool is_full = std::ranges::binary_search(full_layers, layer);
      types.push_back(is_full ? kKimiFull : kKimiLinear);
      (is_full ? full : kda).push_back(layer + 1);
    }
    json["layer_types"] = types;
    json["linear_attn_config"] = {{"head_dim", head_dim},
                                  {"num_heads", num_heads},
                                  {"short_conv_kernel_size", conv_size},
                                  {"kda_layers", kda},
                                  {"full_attn_layers", full}};
  }
};

}  // namespace

std::unique_ptr<Layout> MakeKimiLinear() { return std::make_unique<KimiLinear>(); }

}  // namespace halflife::interop
