#include "interop/layouts/zoology_modules.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

using nlohmann::json;

constexpr const char* kHybrid = "Hybrid";

ZoologyModule ReadModule(const json& description) {
  ZoologyModule module{.class_name = "", .kwargs = std::make_shared<json>(json::object())};
  if (!description.is_object()) return module;
  const auto kwargs = description.find("kwargs");
  if (kwargs != description.end() && !kwargs->is_null())
    module.kwargs = std::make_shared<json>(*kwargs);
  const auto path = description.find("name");
  if (path == description.end() || !path->is_string() || !module.kwargs->is_object()) return module;
  const std::string name = path->get<std::string>();
  module.class_name = name.substr(name.rfind('.') + 1);
  return module;
}

// Returns the list of a Hybrid, or null for another class or if there is no list.
const json* HybridList(const ZoologyModule& module) {
  if (module.class_name != kHybrid) return nullptr;
  const auto configs = module.kwargs->find("configs");
  const bool list = configs != module.kwargs->end() && configs->is_array() && !configs->empty();
  return list ? &*configs : nullptr;
}

// Returns the length of a convolution's list of taps per layer, or 0 if there is no list.
int64_t NumTaps(const ZoologyModule& module) {
  const auto taps = module.kwargs->find("kernel_size");
  const bool list = taps != module.kwargs->end() && taps->is_array();
  return list ? static_cast<int64_t>(taps->size()) : 0;
}

void Demand(ConfigReader& kwargs, const char* key, bool value) {
  kwargs.Require(kwargs.Bool(key, value) == value, key, " is ", value ? "false" : "true", ". Only ",
                 value ? "true" : "false", " is supported.");
}
void Demand(ConfigReader& kwargs, const char* key, double value) {
  const double met = kwargs.Double(key, value);
  kwargs.Require(met == value, key, " is ", met, ". Only ", value, " is supported.");
}

// Each function reads the constructor arguments of one class, for the given layer.
using ReadMixer = model::MixerConfig (*)(ConfigReader& kwargs, int64_t layer);

model::MixerConfig ReadAttention(ConfigReader& kwargs, int64_t) {
  kwargs.Ignore({"log_scores"});
  model::MixerConfig mixer("softmax", {{"out_bias", true}, {"rope_theta", 0.0}});
  mixer.Set("num_heads", kwargs.Int("num_heads", 1));
  mixer.Set("qkv_bias", kwargs.Bool("bias", true));
  mixer.Set("dropout", kwargs.Double("dropout", 0));
  return mixer;
}

void ReadPolynomial(ConfigReader& kwargs, model::MixerConfig& mixer) {
  kwargs.Ignore({"l_max", "mode"});
  const int64_t heads = kwargs.Int("num_heads", 12),
                of_values = kwargs.Int("num_key_value_heads", 12);
  kwargs.Require(heads == of_values, "num_key_value_heads is ", of_values, ". Only num_heads, ",
                 heads, ", is supported.");
  mixer.Set("num_heads", heads);
  mixer.Set("feature_dim", kwargs.Int("feature_dim", 16));
  mixer.Set("eps", kwargs.Double("eps", 1e-12));
  Demand(kwargs, "causal", true);
}

model::MixerConfig ReadBased(ConfigReader& kwargs, int64_t) {
  model::MixerConfig mixer("based");
  ReadPolynomial(kwargs, mixer);
  Demand(kwargs, "qk_norm", false);
  const std::string map = kwargs.String("feature_name", "taylor_exp");
  kwargs.Require(map == "taylor_exp", "feature_name is '", map, "'. Only taylor_exp is supported.");
  return mixer;
}

// The authors' class supports a LayerNorm, gamma and beta, only gamma, or none of the three.
model::MixerConfig ReadRebased(ConfigReader& kwargs, int64_t) {
  kwargs.Ignore({"feature_name"});  // The class does not read it.
  model::MixerConfig mixer("rebased");
  ReadPolynomial(kwargs, mixer);
  const bool gamma = kwargs.Bool("use_gamma", true), beta = kwargs.Bool("use_beta", true),
             normalize = kwargs.Bool("normalize", true);
  kwargs.Require(gamma || !beta,
                 "use_beta is true without use_gamma. Only both or neither is supported.");
  kwargs.Require(!normalize || (gamma && beta),
                 "normalize is true without use_gamma and use_beta. Only all three, or no "
                 "normalize, is supported.");
  mixer.Set("use_gamma", gamma);
  mixer.Set("use_beta", beta);
  mixer.Set("normalize", normalize);
  return mixer;
}

model::MixerConfig ReadBaseConv(ConfigReader& kwargs, int64_t layer) {
  model::MixerConfig mixer("base_conv");
  int64_t taps = 3;
  if (const json* list = kwargs.Member("kernel_size"); list != nullptr && list->is_array()) {
    const bool has = layer < static_cast<int64_t>(list->size()) &&
                     list->at(static_cast<size_t>(layer)).is_number_integer();
    kwargs.Require(has, "kernel_size has no number for layer ", layer,
                   ". Give one number per layer.");
    if (has) taps = list->at(static_cast<size_t>(layer)).get<int64_t>();
  } else {
    taps = kwargs.Int("kernel_size", taps, /*min=*/-1);
  }
  kwargs.Require(taps >= -1 && taps <= 1024, "kernel_size is ", taps,
                 ". Only -1 or a number of taps (for example 3) is supported.");
  mixer.Set("kernel_size", taps);
  mixer.Set("use_act", kwargs.Bool("use_act", false));
  const int64_t length = kwargs.Int("l_max", 1024);
  if (taps < 0) {
    // The model keeps a table with this many rows, and no tensor of the folder limits its size.
    constexpr int64_t kLongest = 1 << 20;
    kwargs.Require(length <= kLongest, "l_max is ", length, ". Only up to ", kLongest,
                   " is supported.");
    mixer.Set("filter_len", length);
    Demand(kwargs, "implicit_long_conv", true);
  } else {
    kwargs.Ignore({"implicit_long_conv"});
  }
  return mixer;
}

model::MixerConfig ReadHyena(ConfigReader& kwargs, int64_t) {
  // Dropout inside the module, initial values, and rates of single tensors that the trainer does
  // not read.
  kwargs.Ignore({"dropout", "filter_dropout", "outer_mixing", "return_state", "w", "wd", "lr",
                 "lr_pos_emb", "channels"});
  model::MixerConfig mixer("hyena");
  mixer.Set("filter_len", kwargs.Int("l_max", 1024));
  mixer.Set("filter_width", kwargs.Int("filter_order", 64));
  mixer.Set("conv_size", kwargs.Int("short_filter_order", 3));
  for (const char* one : {"num_heads", "num_blocks"}) Demand(kwargs, one, 1.0);
  for (const char* off : {"bidirectional", "linear_mixer", "normalized"})
    Demand(kwargs, off, false);
  for (const char* on : {"modulate", "bias"}) Demand(kwargs, on, true);
  Demand(kwargs, "emb_dim", 3.0);
  Demand(kwargs, "num_inner_mlps", 2.0);
  Demand(kwargs, "shift", 0.0);
  Demand(kwargs, "fast_decay_pct", 0.3);
  Demand(kwargs, "slow_decay_pct", 1.5);
  Demand(kwargs, "target", 0.01);
  Demand(kwargs, "modulation_lr", 0.0);
  return mixer;
}

model::MixerConfig ReadRwkv(ConfigReader& kwargs, int64_t) {
  kwargs.Ignore({"l_max", "n_layer"});  // Limit of a kernel, and a parameter of initial values.
  return model::MixerConfig("rwkv4");
}

model::MixerConfig ReadMamba(ConfigReader& kwargs, int64_t) {
  kwargs.Ignore({"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path",
                 "device", "dtype"});
  model::MixerConfig mixer("mamba");
  mixer.Set("d_state", kwargs.Int("d_state", 16));
  mixer.Set("d_conv", kwargs.Int("d_conv", 4));
  mixer.Set("expand", kwargs.Int("expand", 2));
  const json* rank = kwargs.Member("dt_rank");
  if (rank != nullptr && *rank != "auto") mixer.Set("dt_rank", kwargs.Int("dt_rank", 1));
  Demand(kwargs, "conv_bias", true);
  Demand(kwargs, "bias", false);
  return mixer;
}

constexpr Renaming kAttentionNames[] = {
    {"q_proj.", "Wqkv."}, {"k_proj.", "Wqkv."}, {"v_proj.", "Wqkv."}, {"o_proj.", "out_proj."}};
constexpr Renaming kPolynomialNames[] = {
    {"q_proj.", "proj_q."}, {"k_proj.", "proj_k."}, {"v_proj.", "proj_v."}, {"o_proj.", "proj_o."}};
constexpr Renaming kHyenaNames[] = {{"o_proj.", "out_proj."}};
// With `normalize`, these are parameters of a LayerNorm, which has other names.
constexpr Renaming kLayerNormNames[] = {{"q_feature_map.gamma", "ln_q.weight"},
                                        {"q_feature_map.beta", "ln_q.bias"},
                                        {"k_feature_map.gamma", "ln_k.weight"},
                                        {"k_feature_map.beta", "ln_k.bias"}};
constexpr Renaming kScalerNames[] = {{"q_feature_map.", "ln_q."}, {"k_feature_map.", "ln_k."}};

struct MixerClass {
  const char* name;
  ReadMixer read;
  std::span<const Renaming> names;
};
constexpr MixerClass kMixers[] = {{"MHA", ReadAttention, kAttentionNames},
                                  {"BaseConv", ReadBaseConv, {}},
                                  {"Based", ReadBased, kPolynomialNames},
                                  {"ReBased", ReadRebased, kPolynomialNames},
                                  {"Hyena", ReadHyena, kHyenaNames},
                                  {"RWKVTimeMixer", ReadRwkv, {}},
                                  {"Mamba", ReadMamba, {}}};
const MixerClass* ClassOf(const ZoologyModule& module) {
  const auto* found = std::ranges::find(
      kMixers, module.class_name, [](const MixerClass& mixer) { return std::string(mixer.name); });
  return found == std::end(kMixers) ? nullptr : found;
}

}  // namespace

ZoologyModule ZoologyMixerOf(const json& sequence_mixer, int64_t layer) {
  const ZoologyModule module = ReadModule(sequence_mixer);
  const json* list = HybridList(module);
  if (list == nullptr) return module;
  ZoologyModule mixer = ReadModule(list->at(static_cast<size_t>(layer) % list->size()));
  mixer.in_hybrid = true;
  return mixer;
}

int64_t ZoologyPeriod(const json& sequence_mixer, int64_t num_layers) {
  const ZoologyModule module = ReadModule(sequence_mixer);
  const json* list = HybridList(module);
  const auto length = list == nullptr ? 1 : static_cast<int64_t>(list->size());
  for (int64_t layer = 0; layer < length; ++layer) {
    const int64_t num_taps = NumTaps(ZoologyMixerOf(sequence_mixer, layer));
    // One layer more than the list has is enough to report that the list is too short.
    if (num_taps > 0) return std::min(num_layers, num_taps + 1);
  }
  return std::min(num_layers, length);
}

model::MixerConfig ReadZoologyMixer(const ZoologyModule& module, int64_t layer,
                                    ConfigReader& reader) {
  const MixerClass* mixer = ClassOf(module);
  const auto name = [](const MixerClass& known) { return known.name; };
  reader.Require(
      mixer != nullptr, "the sequence_mixer of layer ", layer, " is '", module.class_name,
      "'. Only these classes and Hybrids of them are supported: ", Join(kMixers, ", ", name), ".");
  if (mixer == nullptr) return model::MixerConfig();
  ConfigReader kwargs(*module.kwargs, Concat(reader.where(), ", ", mixer->name));
  const model::MixerConfig config = mixer->read(kwargs, layer);
  kwargs.Check();
  return config;
}

model::MixerConfig ReadZoologyMamba(const json& sequence_mixer, ConfigReader& reader) {
  const ZoologyModule module = ReadModule(sequence_mixer);
  const bool object = module.kwargs->is_object();
  reader.Require(object, "kwargs of the sequence_mixer are not an object. Use {}.");
  if (!object) return model::MixerConfig("mamba");
  ConfigReader kwargs(*module.kwargs, reader.where() + ", Mamba");
  model::MixerConfig config = ReadMamba(kwargs, /*layer=*/0);
  kwargs.Check();
  return config;
}

model::ChannelMixerConfig ReadZoologyStateMixer(const json& state_mixer, int64_t model_dim,
                                                ConfigReader& reader) {
  const ZoologyModule module = ReadModule(state_mixer);
  if (module.class_name == "Identity") return model::ChannelMixerConfig("identity");
  reader.Require(module.class_name == "MLP", "the state_mixer is '", module.class_name,
                 "'. Only MLP and Identity are supported.");
  ConfigReader kwargs(*module.kwargs, reader.where() + ", MLP");
  kwargs.Require(!kwargs.Has("activation"),
                 "activation is given. Only the default, gelu, is supported.");
  Demand(kwargs, "return_residual", false);
  const int64_t times = kwargs.Int("hidden_mult", 1);
  kwargs.Check();
  return model::ChannelMixerConfig(
      "mlp", {{"width", times * model_dim}, {"activation", std::string("gelu")}, {"bias", true}});
}

std::string ZoologyMixerName(const ZoologyModule& mixer, const std::string& parameter) {
  const MixerClass* known = ClassOf(mixer);
  std::string name = known == nullptr ? parameter : Renamed(parameter, known->names);
  if (mixer.class_name != "ReBased") return name;
  const auto normalize = mixer.kwargs->find("normalize");
  const bool norm = normalize == mixer.kwargs->end() || *normalize == true;
  return norm ? Renamed(name, kLayerNormNames) : Renamed(name, kScalerNames);
}

Placement ZoologyPlacement(const ZoologyModule& mixer, const std::string& parameter) {
  Placement placement;
  if (mixer.class_name == "MHA") {
    constexpr std::array kStacked = {"q_proj.", "k_proj.", "v_proj."};
    for (size_t i = 0; i < kStacked.size(); ++i)
      if (parameter.starts_with(kStacked[i]))
        placement = {.part = static_cast<int64_t>(i), .num_parts = kStacked.size()};
  }
  if (parameter.starts_with("time_mix_")) placement.leading_ones = 2;
  if (parameter.ends_with(".freq")) placement.leading_ones = 1;
  return placement;
}

}  // namespace halflife::interop
