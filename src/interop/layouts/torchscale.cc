// Language models of torchscale (github.com/microsoft/torchscale): Decoder, a transformer with
// xPos, T5's biases or a position table, and RetNetDecoder. Also the Decoder in the fork by the
// authors of the LeX Transformer (github.com/sunyt32/torchscale), which adds blockwise causal
// attention and has one xPos module for all layers.
// Their rotations pair neighbouring channels of a head, where halflife pairs halves. The fairseq
// examples write "decoder." before every name, and their options under the same keys.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// Row of the first token, because fairseq counts from the pad token.
constexpr int64_t kFirstPosition = 2;

void RequireFalse(ConfigReader& reader, const char* key) {
  reader.Require(!reader.Bool(key, false), key, " is true. Only false is supported.");
}

// Reads how branches join the residual stream. RetNet accepts `subln` but has no such norms.
model::BlockConfig ReadBlock(ConfigReader& reader, bool has_subln) {
  const bool deep = reader.Bool("deepnorm", false),
             before = reader.Bool("decoder_normalize_before", true);
  const bool subln = reader.Bool("subln", true) && has_subln && !deep;  // deepnorm disables subln.
  reader.Require(!deep || !before,
                 "deepnorm and decoder_normalize_before are both true, which scales the stream of "
                 "pre-norm blocks. Only decoder_normalize_before false is supported.");
  reader.Require(
      !subln || before,
      "subln is true and decoder_normalize_before is false. Only decoder_normalize_before true, or "
      "subln false, is supported.");
  if (deep) return model::BlockConfig("post_norm", {{"deep_norm", true}});
  if (!before) return model::BlockConfig("post_norm");
  return model::BlockConfig(subln ? "sub_ln" : "pre_norm");
}

// Ignores options that the fairseq examples write in addition to the class's own.
void IgnoreFairseqKeys(ConfigReader& reader) {
  // Options of training, of its processes and of experts.
  reader.Ignore({"_name", "arch", "task", "min_params_to_wrap", "moe_expert_ffn_dim",
                 "moe_normalize_expert_grad", "moe_batch_prioritized_routing",
                 "record_a2a_perf_stats", "dummy_a2a", "tokens_per_sample", "tpu", "fp16",
                 "memory_efficient_fp16", "fp16_no_flatten_grads", "ddp_backend", "world_size",
                 "distributed_rank"});
  // Options of fairseq's own transformer, or of texts. Values other than the defaults are reported.
  reader.IgnoreDefaults({{"normalize_output", true},
                         {"add_bos_token", false},
                         {"no_decoder_final_norm", false},
                         {"character_embeddings", false},
                         {"adaptive_input", false},
                         {"adaptive_input_factor", 4},
                         {"adaptive_input_cutoff", nullptr},
                         {"adaptive_softmax_cutoff", nullptr},
                         {"adaptive_softmax_dropout", 0},
                         {"adaptive_softmax_factor", 4},
                         {"tie_adaptive_weights", false},
                         {"tie_adaptive_proj", false},
                         {"decoder_layerdrop", 0},
                         {"decoder_layers_to_keep", nullptr},
                         {"base_layers", 0},
                         {"base_sublayers", 1},
                         {"base_shuffle", false}});
}

class Torchscale : public ImportOnlyLayout {
 public:
  std::string TensorName(const std::string& parameter, ConfigReader*) const override {
    constexpr Renaming kNames[] = {
        {"lm_head.", "output_projection."},
        {"positions.relative_attention_bias.",
         "self_attn_relative_position.relative_attention_bias."},
        {"positions.", "embed_positions."},
        {"embedding_norm.", "layernorm_embedding."},
        {"embeddings.", "embed_tokens."},
        {".mlp_norm.", ".final_layer_norm."},
        {".mlp.inner_norm.", ".ffn.ffn_layernorm."},
        {".mlp.", ".ffn."},
        {".down_proj.", ".fc2."},
        {".attn.inner_norm.", ".attn.inner_attn_ln."},
        {".o_proj.", ".out_proj."},
    };
    const bool last_norm = parameter.starts_with("norm.");
    return kDecoder +
           (last_norm ? "layer_" + parameter : Renamed(Renamed(parameter, kNames), OwnNames()));
  }
  std::string OptionalPrefix() const override { return kDecoder; }
  PositionsKey positions_key() const override { return {"max_target_positions", 1024}; }

 protected:
  static constexpr const char* kDecoder = "decoder.";

  // Returns the names of parameters that only one of the classes has.
  virtual std::span<const Renaming> OwnNames() const = 0;

  // Reads everything that both classes share, except mixer, positions and channel mixer.
  static model::ModelConfig ReadFrame(ConfigReader& reader, const char* norm, double eps) {
    IgnoreCommonKeys(reader);
    IgnoreFairseqKeys(reader);
    // Options of training, of memory, or of experts (which moe_freq 0 disables), and options
    // without an effect.
    reader.Ignore({"activation_dropout",
                   "relu_dropout",
                   "drop_path_rate",
                   "bert_init",
                   "checkpoint_activations",
                   "offload_activations",
                   "fsdp",
                   "ddp_rank",
                   "no_output_layer",
                   "decoder_input_dim",
                   "decoder_output_dim",
                   "moe_top1_expert",
                   "moe_expert_count",
                   "moe_gating_use_fp32",
                   "moe_eval_capacity_token_fraction",
                   "moe_second_expert_policy",
                   "moe_normalize_gate_prob_before_dropping",
                   "use_xmoe",
                   "flash_attention",
                   "seq_parallel"});
    RequireFalse(reader, "multiway");
    const int64_t experts = reader.Int("moe_freq", 0, /*min=*/0);
    reader.Require(experts == 0, "moe_freq is ", experts, ". Only 0 (no experts) is supported.");
    reader.Require(reader.Has("vocab_size"), "vocab_size is missing");
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 1);
    config.model_dim = reader.Int("decoder_embed_dim", 768);
    config.num_layers = reader.Int("decoder_layers", 12);
    config.dropout = reader.Double("dropout", 0.0);
    config.embedding.scale = reader.Bool("no_scale_embedding", true) ? 1 : 0;
    config.embedding.norm = reader.Bool("layernorm_embedding", false);
    config.head.tied = reader.Bool("share_decoder_input_output_embed", false);
    config.norm = model::NormConfig(norm, {{"eps", reader.Double("layernorm_eps", eps)}});
    return config;
  }
};

class TorchscaleDecoder : public Torchscale {
 public:
  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFrame(reader, "layer_norm", 1e-5);
    for (const char* key : {"segment_length", "dilated_ratio"})
      reader.Require(!reader.Has(key), key,
                     " is set, which is for dilated attention. Only null is supported.");
    RefuseExperiments(reader);
    config.block = ReadBlock(reader, /*has_subln=*/true);
    config.positions = ReadPositions(reader);
    config.mixer = model::MixerConfig(mixer(), {{"qkv_bias", true}, {"out_bias", true}});
    config.mixer.Set("num_heads", NumHeads(reader));
    config.mixer.Set("dropout", reader.Double("attention_dropout", 0.0));
    config.mixer.Set("block", ReadBlockLength(reader));
    if (config.positions.name() != "xpos") config.mixer.Set("rope_theta", 0.0);
    config.channel_mixer = model::ChannelMixerConfig("mlp", {{"bias", true}});
    config.channel_mixer.Set("width", reader.Int("decoder_ffn_embed_dim", 3072));
    config.channel_mixer.Set("activation", ReadActivation(reader, "activation_fn", "gelu",
                                                          ActivationNames::kTorchscale));
    return config;
  }

  Placement PlacementOf(const std::string& parameter, ConfigReader* reader) const override {
    const auto has = [&](const char* piece) { return parameter.find(piece) != std::string::npos; };
    if (HasXpos(*reader) && (has(".q_proj.") || has(".k_proj.")))
      return {.pair_rows = HeadDim(*reader)};
    if (parameter == "positions.weight")
      return {.first_row = kFirstPosition, .num_rows = kFirstPosition + NumPositions(*reader)};
    if (has("relative_attention_bias."))  // The second half is for later tokens.
      return {.first_row = 0, .num_rows = NumBuckets(*reader)};
    return {};
  }

  // True for buffers that the modules compute again.
  bool IsBuffer(const std::string& tensor, ConfigReader& reader) const override {
    return (IsXposScale(tensor) && HasXpos(reader)) || tensor.ends_with("._float_tensor") ||
           tensor == "decoder.version" || tensor == "version";
  }
  // Returns the share that each pair of channels keeps over scale_base tokens. Checkpoints of
  // versions with other constants differ only in this buffer.
  std::vector<float> BufferValues(const std::string& tensor, ConfigReader& reader) const override {
    if (!IsXposScale(tensor)) return {};
    constexpr double kGamma = 0.4;
    const int64_t head_dim = HeadDim(reader);
    std::vector<float> scales;
    for (int64_t channel = 0; channel < head_dim; channel += 2) {
      const double part = static_cast<double>(channel) / static_cast<double>(head_dim);
      scales.push_back(static_cast<float>((part + kGamma) / (1 + kGamma)));
    }
    return scales;
  }

 protected:
  std::span<const Renaming> OwnNames() const override {
    static constexpr Renaming kNames[] = {{".attn_norm.", ".self_attn_layer_norm."},
                                          {".attn.", ".self_attn."},
                                          {".up_proj.", ".fc1."}};
    return kNames;
  }

 private:
  static int64_t NumHeads(ConfigReader& reader) {
    return reader.Int("decoder_attention_heads", 12);
  }
  static int64_t HeadDim(ConfigReader& reader) {
    return reader.Int("decoder_embed_dim", 768) / NumHeads(reader);
  }
  static bool HasXpos(ConfigReader& reader) { return reader.Bool("xpos_rel_pos", false); }
  // The buffer is in each layer, or in the fork once for all layers.
  static bool IsXposScale(const std::string& tensor) {
    return tensor.ends_with(".self_attn.xpos.scale") || tensor == "self_attn_xpos.scale" ||
           tensor == "decoder.self_attn_xpos.scale";
  }
  static int64_t NumPositions(ConfigReader& reader) {
    return reader.Int("max_target_positions", 1024);
  }
  static int64_t NumBuckets(ConfigReader& reader) {
    return reader.Int("rel_pos_buckets", 0, /*min=*/0);
  }

  // In the fork, a query sees its own half of a block and the half before. For rows of at most
  // block_size tokens, the fork uses plain causal attention, which is equivalent.
  static int64_t ReadBlockLength(ConfigReader& reader) {
    const int64_t size = std::max<int64_t>(0, reader.Int("block_size", -1, /*min=*/-1));
    reader.Require(size % 2 == 0, "block_size is ", size, ". Use an even number: attention goes ",
                   "over halves of a block, and the class misplaces positions where they differ.");
    return size / 2;
  }

  // Rejects options of the fork's other experiments, and names of xPos from before its constants
  // were final.
  static void RefuseExperiments(ConfigReader& reader) {
    for (const char* key : {"s4", "ffn_s4", "global_token", "sope_rel_pos", "expo_rel_pos"})
      RequireFalse(reader, key);
    const std::string mode = reader.String("mode", "default");
    reader.Require(mode == "default", "mode is '", mode, "'. Only 'default' is read.");
  }

  static model::PositionsConfig ReadPositions(ConfigReader& reader) {
    const int64_t buckets = NumBuckets(reader), longest = reader.Int("max_rel_pos", 0, /*min=*/0);
    const int64_t scale_base = reader.Int("xpos_scale_base", 512);
    const bool xpos = reader.Bool("xpos_rel_pos", false), biased = buckets > 0 && longest > 0,
               learned = reader.Bool("decoder_learned_pos", false),
               added = !reader.Bool("no_token_positional_embeddings", false);
    // Sinusoidal positions have no tensor, so the folder's tensors cannot show whether they were
    // used.
    reader.Require(
        learned || reader.Has("no_token_positional_embeddings"),
        "no_token_positional_embeddings is missing. Set it to true, or to false if sines are "
        "added to the embedding.");
    reader.Require(!reader.Has("no_token_positional_embeddings") || xpos + biased + added <= 1,
                   "positions use more than one of xpos_rel_pos ", xpos, ", rel_pos_buckets ",
                   buckets, " and no_token_positional_embeddings ", !added,
                   ". Only one of them is supported.");
    reader.Require(
        !biased || buckets % 4 == 0, "rel_pos_buckets is ", buckets,
        ". Only multiples of 4 are supported, because half of the buckets are for later tokens.");
    if (xpos)
      return model::PositionsConfig("xpos", {{"scale_base", static_cast<double>(scale_base)}});
    // The class counts buckets of both directions, and a causal model uses half of them.
    if (biased)
      return model::PositionsConfig("t5",
                                    {{"num_buckets", buckets / 2}, {"max_distance", longest}});
    if (!added) return model::PositionsConfig("none");
    if (learned)
      return model::PositionsConfig("learned", {{"max_positions", NumPositions(reader)}});
    return model::PositionsConfig("sinusoidal", {{"layout", std::string("fairseq")}});
  }
};

class TorchscaleRetNet : public Torchscale {
 public:
  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    model::ModelConfig config = ReadFrame(reader, "rms_norm", 1e-6);
    reader.Ignore({"rel_pos_buckets", "max_rel_pos", "xpos_rel_pos", "xpos_scale_base",
                   "decoder_learned_pos", "no_token_positional_embeddings", "chunkwise_recurrent",
                   "recurrent_chunk_size"});
    reader.IgnoreDefaults({{"segment_length", nullptr}, {"dilated_ratio", nullptr}});
    config.block = ReadBlock(reader, /*has_subln=*/false);
    const int64_t values = reader.Int("decoder_value_embed_dim", 1280),
                  inner = reader.Int("decoder_ffn_embed_dim", 1280);
    config.mixer = model::MixerConfig(mixer());
    config.mixer.Set("num_heads", NumHeads(reader));
    config.mixer.Set("expand_v",
                     static_cast<double>(values) / static_cast<double>(config.model_dim));
    config.mixer.Set("row_norm", ReadRowNorm(reader));
    const std::string activation =
        ReadActivation(reader, "activation_fn", "gelu", ActivationNames::kTorchscale);
    config.channel_mixer = activation == "silu"
                               ? model::ChannelMixerConfig("swiglu")
                               : model::ChannelMixerConfig("glu", {{"activation", activation}});
    config.channel_mixer.Set("width", inner);
    return config;
  }

  Placement PlacementOf(const std::string& parameter, ConfigReader* reader) const override {
    const auto has = [&](const char* piece) { return parameter.find(piece) != std::string::npos; };
    if (has(".attn.q_proj.") || has(".attn.k_proj."))
      return {.pair_rows = reader->Int("decoder_embed_dim", 768) / NumHeads(*reader)};
    return {};
  }

  bool IsBuffer(const std::string& tensor, ConfigReader&) const override {
    return tensor.ends_with("retnet_rel_pos.angle") || tensor.ends_with("retnet_rel_pos.decay");
  }

 protected:
  std::span<const Renaming> OwnNames() const override {
    static constexpr Renaming kNames[] = {{".attn_norm.", ".retention_layer_norm."},
                                          {".attn.", ".retention."},
                                          {".ffn.gate_proj.", ".ffn.fc1."},
                                          {".ffn.up_proj.", ".ffn.gate."}};
    return kNames;
  }

 private:
  static int64_t NumHeads(ConfigReader& reader) { return reader.Int("decoder_retention_heads", 3); }
  // Reads halflife's own key row_norm. The default is the class's parallel form, which has no state
  // of constant size and differs from the class's recurrent form in the eps of the heads' norm.
  static std::string ReadRowNorm(ConfigReader& reader) {
    const std::string row_norm = reader.String("row_norm", "torchscale_parallel");
    constexpr std::array<const char*, 3> kKnown = {"torchscale_parallel", "decay", "none"};
    const bool known = std::ranges::count(kKnown, row_norm) > 0;
    reader.Require(known, "row_norm is '", row_norm, "'. Use one of ", Join(kKnown, ", "), ".");
    return known ? row_norm : kKnown[0];
  }
};

}  // namespace

std::unique_ptr<Layout> MakeTorchscaleDecoder() { return std::make_unique<TorchscaleDecoder>(); }
std::unique_ptr<Layout> MakeTorchscaleRetNet() { return std::make_unique<TorchscaleRetNet>(); }

}  // namespace halflife::interop
