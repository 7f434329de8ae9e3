// GAU-alpha in PyTorch (github.com/JunnYu/GAU-alpha-pytorch): an encoder of gated attention units
// with a masked-token head. Its matrix i_dense contains the rows of u, v and z, in this order. Its
// rotation pairs neighbouring channels of z, where halflife pairs the halves.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

constexpr int64_t kWidth = 1536, kKeyDim = 128;  // Defaults of the class.

class GauAlpha : public ImportOnlyLayout {
 public:
  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    // max_position_embeddings is only the size of a table of angles; rotation supports any
    // position. The other keys belong to another head or to training.
    reader.Ignore({"max_position_embeddings", "classifier_dropout", "gradient_checkpointing",
                   "pad_token_id"});
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 12000);
    config.model_dim = reader.Int("hidden_size", 768);
    config.num_layers = reader.Int("num_hidden_layers", 24);
    config.dropout = reader.Double("hidden_dropout_prob", 0.1);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    const int64_t embedded = reader.Int("embedding_size", config.model_dim);
    reader.Require(embedded == config.model_dim, "embedding_size is ", embedded,
                   ", but hidden_size is ", config.model_dim, ". Only equal sizes are supported.");
    config.embedding.num_segments = reader.Int("type_vocab_size", 2);
    config.embedding.norm = true;
    config.head.tied = reader.Bool("tie_word_embeddings", true);
    config.norm = model::NormConfig(
        "rms_norm", {{"eps", reader.Double("layer_norm_eps", 1e-12)}, {"weight", false}});
    config.block = model::BlockConfig("post_norm");
    config.channel_mixer = model::ChannelMixerConfig(model::kNoChannelMixer);
    config.objective = model::ObjectiveConfig(
        "masked_token", {{"mask_id", reader.Int("mask_token_id", 4, /*min=*/0)}});
    ReadUnit(reader, config.mixer);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    if (parameter == "lm_head.weight") return "cls.predictions.decoder.weight";
    constexpr Renaming kNames[] = {
        {"segment_embeddings.", "embeddings.token_type_embeddings."},
        {"layers.", "encoder.layer."},
        {".attn.o_proj.", ".gau.o_dense."},
        {".attn.q_gain", ".gau.q_scaleoffset.weight"},
        {".attn.k_gain", ".gau.k_scaleoffset.weight"},
        {".attn.q_offset", ".gau.q_scaleoffset.bias"},
        {".attn.k_offset", ".gau.k_scaleoffset.bias"},
        {".attn.u_proj.", ".gau.i_dense."},
        {".attn.v_proj.", ".gau.i_dense."},
        {".attn.z_proj.", ".gau.i_dense."},
    };
    if (parameter == "embeddings.weight") return "gau_alpha.embeddings.word_embeddings.weight";
    return "gau_alpha." + Renamed(parameter, kNames);
  }

  Placement PlacementOf(const std::string& parameter, ConfigReader* reader) const override {
    const auto has = [&](const char* piece) { return parameter.find(piece) != std::string::npos; };
    const int64_t width = reader->Int("intermediate_size", kWidth),
                  key_dim = reader->Int("attention_key_size", kKeyDim);
    if (has(".attn.q_") || has(".attn.k_")) return {.pair_rows = key_dim};
    const int64_t num_rows = 2 * width + key_dim;
    if (has(".u_proj.")) return {.first_row = 0, .num_rows = num_rows};
    if (has(".v_proj.")) return {.first_row = width, .num_rows = num_rows};
    if (has(".z_proj."))
      return {.first_row = 2 * width, .num_rows = num_rows, .pair_rows = key_dim};
    return {};
  }

 private:
  static void ReadUnit(ConfigReader& reader, model::MixerConfig& mixer) {
    mixer = model::MixerConfig("gau", {{"causal", false}});
    mixer.Set("width", reader.Int("intermediate_size", kWidth));
    mixer.Set("key_dim", reader.Int("attention_key_size", kKeyDim));
    mixer.Set("bias", reader.Bool("use_bias", false));
    mixer.Set("dropout", reader.Double("attention_probs_dropout_prob", 0.1));
    RequireSwish(reader, "swish");
    const bool scaled = reader.Bool("attention_scale", true);
    reader.Require(scaled,
                   "attention_scale is false. Only true is supported: scores are scaled by "
                   "1 / sqrt(attention_key_size).");
    const std::string normaliser = reader.String("normalization", "softmax_plus");
    constexpr std::array<const char*, 3> kKnown = {"softmax", "softmax_plus", "squared_relu"};
    const bool known = std::ranges::count(kKnown, normaliser) > 0;
    reader.Require(known, "normalization is '", normaliser,
                   "'. Only these values are supported: ", Join(kKnown, ", "), ".");
    if (known) mixer.Set("normaliser", normaliser);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeGauAlpha() { return std::make_unique<GauAlpha>(); }

}  // namespace halflife::interop
