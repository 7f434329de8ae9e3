// Shared parts of GPT-2's class and the classes derived from it: sizes, LayerNorm, ties, names, and
// transposed matrices.
#include <array>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

constexpr const char* kHead = "lm_head.weight";

constexpr Renaming kGpt2Names[] = {
    {"embeddings.", "wte."},
    {"positions.", "wpe."},
    {"layers.", "h."},
    {".attn_norm.", ".ln_1."},
    // After the layers' norms, whose names end in it.
    {".mlp_norm.", ".ln_2."},
    {"norm.", "ln_f."},
    {".q_proj.", ".c_attn."},
    {".k_proj.", ".c_attn."},
    {".v_proj.", ".c_attn."},
    {".o_proj.", ".c_proj."},
    {".up_proj.", ".c_fc."},
    {".down_proj.", ".c_proj."},
};
constexpr std::array<const char*, 3> kSideBySide = {".q_proj.", ".k_proj.", ".v_proj."};

// Reads a size under the class's own key, or under the key that all classes of `transformers`
// support.
int64_t ReadSize(ConfigReader& reader, const char* key, const char* alias, int64_t absent) {
  const int64_t own = reader.Int(key, absent), other = reader.Int(alias, own);
  reader.Require(!reader.Has(key) || own == other, key, " is ", own, ", but ", alias,
                 ", which means the same, is ", other);
  return other;
}

}  // namespace

model::ModelConfig ReadGpt2Frame(ConfigReader& reader) {
  IgnoreCommonKeys(reader);
  // The precision of scores, dropout of attention weights, an old name of n_positions, heads other
  // than the language model's, and memory options of training.
  reader.Ignore({"reorder_and_upcast_attn", "attn_pdrop", "n_ctx", "summary_activation",
                 "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                 "summary_use_proj", "task_specific_params", "gradient_checkpointing"});
  reader.Require(!reader.Bool("add_cross_attention", false),
                 "add_cross_attention is true. Only false is supported.");
  model::ModelConfig config;
  config.vocab_size = reader.Int("vocab_size", 50257);
  config.model_dim = ReadGpt2Width(reader);
  config.num_layers = ReadSize(reader, "n_layer", "num_hidden_layers", 12);
  // halflife has one dropout rate for both embeddings and branches. If they differ, the rate of the
  // branches is used.
  config.dropout = reader.Double("resid_pdrop", 0.1);
  reader.Ignore({"embd_pdrop"});
  config.initializer_range = reader.Double("initializer_range", 0.02);
  config.head.tied = reader.Bool("tie_word_embeddings", true);
  config.norm = model::NormConfig("layer_norm");
  config.norm.Set("eps", reader.Double("layer_norm_epsilon", 1e-5));
  return config;
}

void ReadGpt2Mlp(ConfigReader& reader, model::ModelConfig& config) {
  config.positions = model::PositionsConfig("learned");
  config.positions.Set("max_positions",
                       ReadSize(reader, "n_positions", "max_position_embeddings", 1024));
  config.channel_mixer = model::ChannelMixerConfig("mlp", {{"bias", true}});
  config.channel_mixer.Set("width", reader.Int("n_inner", 4 * config.model_dim));
  config.channel_mixer.Set("activation", ReadActivation(reader, "activation_function", "gelu_new"));
}

int64_t ReadGpt2Width(ConfigReader& reader) {
  return ReadSize(reader, "n_embd", "hidden_size", 768);
}

int64_t ReadGpt2Heads(ConfigReader& reader) {
  return ReadSize(reader, "n_head", "num_attention_heads", 12);
}

std::string Gpt2Name(const std::string& parameter) {
  return parameter == kHead ? parameter : kGpt2Prefix + Renamed(parameter, kGpt2Names);
}

Placement Gpt2Placement(const std::string& parameter) {
  Placement placement;
  placement.transposed = parameter.ends_with("_proj.weight");
  for (size_t i = 0; i < kSideBySide.size(); ++i)
    if (parameter.find(kSideBySide[i]) != std::string::npos)
      placement.part = static_cast<int64_t>(i), placement.num_parts = kSideBySide.size();
  return placement;
}

bool IsGpt2Mask(const std::string& tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
}

}  // namespace halflife::interop
