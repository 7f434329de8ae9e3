// Falcon-H1 of `transformers`: every layer adds the outputs of Mamba-2 and of softmax attention,
// which read the same normed input, and has an MLP. Factors apply to the embedding, to the inputs
// and outputs of both mixers, to the parts of Mamba-2's input projection, to keys, to the MLP's
// gate and output, and to the logits.
#include <array>
#include <nlohmann/json.hpp>

#include "interop/layouts/mamba2_hybrid.h"
#include "model/mixers/parallel.h"

namespace halflife::interop {
namespace {

// mamba2's factors in the order of `ssm_multipliers`.
constexpr std::array<const char*, 5> kSsmFactors = {"z_multiplier", "x_multiplier", "b_multiplier",
                                                    "c_multiplier", "dt_multiplier"};
constexpr std::array<const char*, 2> kMlpFactors = {"gate_multiplier", "down_multiplier"};

// Reads a list with one number for each of the options, or 1 for all.
template <size_t kCount>
void ReadFactors(ConfigReader& reader, const char* key,
                 const std::array<const char*, kCount>& options, model::PartConfig& part) {
  const nlohmann::json* factors = reader.Member(key);
  if (factors == nullptr) return;
  const bool valid = factors->is_array() && factors->size() == kCount &&
                     std::ranges::all_of(*factors, &nlohmann::json::is_number);
  reader.Require(valid, key, " is not a list of ", kCount, " numbers. Write ", kCount,
                 " numbers, or remove the key.");
  for (size_t i = 0; valid && i < kCount; ++i)
    part.Set(options[i], (*factors)[i].template get<double>());
}

template <size_t kCount>
nlohmann::ordered_json WrittenFactors(const std::array<const char*, kCount>& options,
                                      const model::PartConfig& part) {
  nlohmann::ordered_json factors = nlohmann::ordered_json::array();
  for (const char* option : options) factors.push_back(part.Get<double>(option));
  return factors;
}

// The two parts of a mixer. Null: there is none.
struct FalconParts {
  const model::ParallelPart* mamba2 = nullptr;
  const model::ParallelPart* softmax = nullptr;
};
FalconParts FindParts(const model::MixerConfig& mixer) {
  FalconParts found;
  for (const model::ParallelPart& part : model::PartsOfParallel(mixer)) {
    if (part.mixer.name() == kMamba2Mixer) found.mamba2 = &part;
    if (part.mixer.name() == kSoftmaxMixer) found.softmax = &part;
  }
  return found;
}

class FalconH1 : public Layout {
 public:
  PositionsKey positions_key() const override { return {.usual = 8192}; }

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override {
    std::vector<std::string> lines = PartObstacles(config, {.positions = RopeScalings(),
                                                            .mlp_bias = MlpBias::kOption,
                                                            .checks_mixers = true,
                                                            .embedding_scale = true,
                                                            .mlp_multipliers = true,
                                                            .logit_scale = true});
    if (!config.hybrid.empty()) lines.emplace_back("the model has hybrid layers");
    if (config.mixer.name() != mixer()) return lines;
    const FalconParts parts = FindParts(config.mixer);
    if (parts.mamba2 == nullptr || parts.softmax == nullptr ||
        model::PartsOfParallel(config.mixer).size() != 2) {
      lines.emplace_back("the parts of parallel are not mamba2 and softmax. Use these two parts.");
      return lines;
    }
    AddOptionObstacles(parts.softmax->mixer, config.sizes(),
                       {"num_heads", "num_kv_heads", "head_dim", "qk_norm_eps", "dropout",
                        "rope_theta", "key_multiplier", "qkv_bias", "out_bias"},
                       lines);
    AddAttentionBiasObstacle(parts.softmax->mixer, lines);
    AddYarnObstacle(config, parts.softmax->mixer, lines);
    if (parts.softmax->mixer.Get<double>("rope_theta") == 0)
      lines.emplace_back("softmax does not rotate q and k");
    AddOptionObstacles(
        parts.mamba2->mixer, config.sizes(),
        {"num_heads", "head_dim", "state_size", "num_groups", "conv_kernel", "use_bias",
         "use_in_bias", "use_out_bias", "use_conv_bias", "norm", "dt_limit_min", "dt_limit_max",
         "a_init", "z_multiplier", "x_multiplier", "b_multiplier", "c_multiplier", "dt_multiplier"},
        lines);
    return lines;
  }

  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const override {
    const FalconParts parts = FindParts(config.mixer);
    json["hidden_size"] = config.model_dim;
    json["num_hidden_layers"] = config.num_layers;
    json["intermediate_size"] = config.channel_mixer.Get<int64_t>("width");
    json["hidden_act"] = "silu";
    json["rms_norm_eps"] = config.norm.Get<double>("eps");
    json["mlp_bias"] = config.channel_mixer.Get<bool>("bias");
    json["mlp_multipliers"] = WrittenFactors(kMlpFactors, config.channel_mixer);
    json["embedding_multiplier"] = config.embedding.scale;
    json["lm_head_multiplier"] = config.head.logit_scale;
    WriteAttention(*parts.softmax, config.positions, json);
    WriteMamba2(*parts.mamba2, json);
  }

  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreHybridKeys(reader);
    reader.Ignore({"layers_block_type", "layer_types", "mamba_use_mlp", "attn_layer_indices"});
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 128000);
    config.model_dim = reader.Int("hidden_size", 4096);
    config.num_layers = reader.Int("num_hidden_layers", 32);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    config.head.tied = reader.Bool("tie_word_embeddings", false);
    config.head.logit_scale = ReadPositiveFactor(reader, "lm_head_multiplier");
    config.embedding.scale = ReadPositiveFactor(reader, "embedding_multiplier");
    config.norm.Set("eps", reader.Double("rms_norm_eps", 1e-5));
    config.channel_mixer.Set("width", reader.Int("intermediate_size", 14336));
    config.channel_mixer.Set("bias", reader.Bool("mlp_bias", false));
    ReadFactors(reader, "mlp_multipliers", kMlpFactors, config.channel_mixer);
    model::ParallelPart mamba2(ReadMamba2(reader, config.model_dim),
                               reader.Double("ssm_in_multiplier", 1),
                               reader.Double("ssm_out_multiplier", 1));
    model::ParallelPart softmax(ReadAttention(reader, config),
                                reader.Double("attention_in_multiplier", 1),
                                reader.Double("attention_out_multiplier", 1));
    config.mixer = model::ParallelMixer({std::move(mamba2), std::move(softmax)});
    return config;
  }

  TensorPlace PlaceOf(const model::ModelConfig& config, const std::string& parameter,
                      ConfigReader*) const override {
    return {.name = FeedForwardName(config, parameter), .placement = {}};
  }

 private:
  static model::MixerConfig ReadMamba2(ConfigReader& reader, int64_t model_dim) {
    const int64_t expanded = ReadExpandedWidth(reader, model_dim),
                  given = reader.Int("mamba_d_ssm", 1024);
    const bool is_given = !reader.IsNull("mamba_d_ssm");
    model::MixerConfig mixer =
        ReadHybridMamba2(reader, is_given ? given : expanded,
                         is_given ? "mamba_d_ssm" : "mamba_expand x hidden_size");
    const bool in = mixer.Get<bool>("use_bias"), out = reader.Bool("projectors_bias", false);
    mixer.Set("use_bias", in && out);
    mixer.Set("use_in_bias", in && !out);
    mixer.Set("use_out_bias", out && !in);
    const bool norm = reader.Bool("mamba_rms_norm", false),
               norm_first = reader.Bool("mamba_norm_before_gate", true);
    mixer.Set("norm", std::string(!norm ? "none" : norm_first ? "norm_first" : "gate_first"));
    ReadFactors(reader, "ssm_multipliers", kSsmFactors, mixer);
    return mixer;
  }

  static void WriteMamba2(const model::ParallelPart& part, nlohmann::ordered_json& json) {
    const model::MixerConfig& mixer = part.mixer;
    WriteHybridMamba2(mixer, json);
    const bool both = mixer.Get<bool>("use_bias");
    json["mamba_proj_bias"] = both || mixer.Get<bool>("use_in_bias");
    json["projectors_bias"] = both || mixer.Get<bool>("use_out_bias");
    json["mamba_d_ssm"] = mixer.Get<int64_t>("num_heads") * mixer.Get<int64_t>("head_dim");
    const auto norm = mixer.Get<std::string>("norm");
    json["mamba_rms_norm"] = norm != "none";
    json["mamba_norm_before_gate"] = norm != "gate_first";
    json["ssm_multipliers"] = WrittenFactors(kSsmFactors, mixer);
    json["ssm_in_multiplier"] = part.input_multiplier;
    json["ssm_out_multiplier"] = part.output_multiplier;
  }

  model::MixerConfig ReadAttention(ConfigReader& reader, model::ModelConfig& config) const {
    model::MixerConfig softmax =
        ReadHybridSoftmax(reader, config.model_dim, {.num_heads = 32, .num_kv_heads = 8});
    ReadAttentionBias(reader, softmax);
    softmax.Set("key_multiplier", reader.Double("key_multiplier", 1));
    const PositionsKey positions = positions_key();
    ReadRope(reader,
             {.head_dim = softmax.Get<int64_t>("head_dim"),
              .max_positions = reader.Int(positions.name, positions.usual, /*min=*/0)},
             softmax, config.positions);
    return softmax;
  }

  static void WriteAttention(const model::ParallelPart& part,
                             const model::PositionsConfig& positions,
                             nlohmann::ordered_json& json) {
    WriteHybridSoftmax(part.mixer, json);
    json["attention_bias"] = part.mixer.Get<bool>("qkv_bias");
    json["key_multiplier"] = part.mixer.Get<double>("key_multiplier");
    json["attention_in_multiplier"] = part.input_multiplier;
    json["attention_out_multiplier"] = part.output_multiplier;
    WriteRope(part.mixer, positions, /*has_part=*/false, json);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeFalconH1() { return std::make_unique<FalconH1>(); }

}  // namespace halflife::interop
