// Small models for associative recall in Zoology's framework, which the ReBased authors also use.
// The config.json is the `model` part of their configuration as JSON, where modules are given by
// import path. A TransformerBlock adds its second norm, or an MLP of it, to the residual stream. A
// MambaBlock is one RMSNorm and Mamba, regardless of the class that sequence_mixer names.
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"
#include "interop/layouts/zoology_modules.h"

namespace halflife::interop {
namespace {

constexpr Renaming kFrame[] = {
    {"embeddings.", "embeddings.word_embeddings."},
    {"positions.", "embeddings.position_embeddings."},
    {".attn_norm.", ".norm1."},
    {".mlp_norm.", ".norm2."},
    {"norm.", "ln_f."},  // After the layers' norms, whose names end in it.
    {".mlp.up_proj.", ".state_mixer.fc1."},
    {".mlp.down_proj.", ".state_mixer.fc2."},
};
constexpr Renaming kMambaFrame[] = {
    {"embeddings.", "embeddings.word_embeddings."},
    {"positions.", "embeddings.position_embeddings."},
    {".attn_norm.", ".rms."},  // A temporary name, because it must not match "norm." below.
    {"norm.", "ln_f."},
    {".rms.", ".norm."},
    {".attn.", ".mixer."},
};

bool HasMambaBlocks(ConfigReader& reader) {
  return reader.String("block_type", "TransformerBlock") == "MambaBlock";
}

// The parts of a mixer parameter's name, such as "layers.3.attn.q_proj.weight".
struct MixerParameter {
  std::string layer;  // "layers.3."
  ZoologyModule mixer;
  std::string name;  // "q_proj.weight"
};
std::optional<MixerParameter> InMixer(const std::string& parameter, ConfigReader* reader) {
  const auto [layer, of_layer, of_mixer] = ParseLayerParameter(parameter);
  if (of_mixer.empty()) return std::nullopt;
  return MixerParameter{.layer = Concat("layers.", layer, "."),
                        .mixer = ZoologyMixerOf(*reader->Member("sequence_mixer"), layer),
                        .name = of_mixer};
}

// Reads the mixers. The model's mixer is the one of the last layer of the period, as in recipes.
// Earlier layers that differ are hybrid groups.
void ReadMixers(ConfigReader& reader, const nlohmann::json& sequence_mixer,
                model::ModelConfig& config) {
  const int64_t period = ZoologyPeriod(sequence_mixer, config.num_layers);
  const auto read = [&](int64_t layer) {
    return ReadZoologyMixer(ZoologyMixerOf(sequence_mixer, layer), layer, reader);
  };
  config.mixer = read(period - 1);
  for (int64_t layer = 0; layer + 1 < period; ++layer) {
    model::MixerConfig mixer = read(layer);
    if (mixer == config.mixer) continue;
    model::LayerGroup& group = config.hybrid.emplace_back();
    group.mixer = std::move(mixer);
    if (period == config.num_layers) {
      group.layers = {layer};
    } else {
      group.every = period;
      group.first = layer;
    }
  }
}

class Zoology : public ImportOnlyLayout {
 public:
  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    IgnoreCommonKeys(reader);
    // Arguments that are also in the modules' kwargs, and options of training, logging and naming.
    reader.Ignore({"num_heads", "use_gamma", "use_beta", "normalize", "log_scores", "drop_path",
                   "gradient_checkpointing", "learnable_word_embeddings", "name"});
    model::ModelConfig config = ReadSizes(reader);
    RefuseOtherBlocks(reader);
    config.block.Set("scale_init_by_depth", true);
    const std::string objective = reader.String("objective", "next_token");
    // A key of halflife: the authors' trainer always uses labels.
    const bool labelled = objective == "labelled";
    reader.Require(labelled || objective == "next_token", "objective is '", objective,
                   "'. Use next_token or labelled.");
    if (labelled) config.objective = model::ObjectiveConfig(objective);
    HasMambaBlocks(reader) ? ReadMambaBlocks(reader, config) : ReadBlocks(reader, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override {
    if (parameter.starts_with("lm_head.")) return parameter;
    if (HasMambaBlocks(*reader)) return "backbone." + Renamed(parameter, kMambaFrame);
    const std::optional<MixerParameter> inner = InMixer(parameter, reader);
    if (!inner) return "backbone." + Renamed(parameter, kFrame);
    return Concat("backbone.", inner->layer, "sequence_mixer.",
                  inner->mixer.in_hybrid ? "mixer." : "",
                  ZoologyMixerName(inner->mixer, inner->name));
  }
  Placement PlacementOf(const std::string& parameter, ConfigReader* reader) const override {
    if (HasMambaBlocks(*reader)) return {};
    const std::optional<MixerParameter> inner = InMixer(parameter, reader);
    return inner ? ZoologyPlacement(inner->mixer, inner->name) : Placement();
  }

  // True for tables that follow from sizes: times, rates, and features that are not trained.
  bool IsBuffer(const std::string& tensor, ConfigReader&) const override {
    return tensor.ends_with(".pos_emb.t") || tensor.ends_with(".modulation.deltas") ||
           tensor.ends_with(".conv.pos_emb.z");
  }
  // True for the beta that ReBased declares even without use_beta.
  bool IsUnused(const std::string& tensor) const override {
    return tensor.ends_with(".ln_q.beta") || tensor.ends_with(".ln_k.beta");
  }
  // All layers of a filter's network share one module of sines.
  std::string CopyOf(const std::string& tensor) const override {
    for (const char* again : {".implicit_filter.3.freq", ".implicit_filter.5.freq"})
      if (tensor.ends_with(again))
        return tensor.substr(0, tensor.size() - std::string_view(again).size()) +
               ".implicit_filter.1.freq";
    return {};
  }

 private:
  static model::ModelConfig ReadSizes(ConfigReader& reader) {
    model::ModelConfig config;
    const int64_t multiple = reader.Int("pad_vocab_size_multiple", 1);
    config.vocab_size = (reader.Int("vocab_size", 8192) + multiple - 1) / multiple * multiple;
    config.model_dim = reader.Int("d_model", 128);
    config.num_layers = reader.Int("n_layers", 2);
    config.dropout = reader.Double("resid_dropout", 0);
    config.embedding.dropout = reader.Double("embed_dropout", 0.1);
    config.head.tied = true;
    const int64_t positions = reader.Int("max_position_embeddings", 64, /*min=*/0);
    if (positions > 0)
      config.positions = model::PositionsConfig("learned", {{"max_positions", positions}});
    config.norm = model::NormConfig("layer_norm", {{"eps", 1e-5}});
    const double last = reader.Double("layer_norm_epsilon", 1e-5);
    if (last != 1e-5) config.final_norm = model::NormConfig("layer_norm", {{"eps", last}});
    return config;
  }

  // Returns the description of a module, or null if the member is absent or not an object.
  // `example` is the import path of a class, for the message.
  static const nlohmann::json* Module(ConfigReader& reader, const char* key, const char* example) {
    const nlohmann::json* module = reader.Member(key);
    const std::string fix =
        Concat(". Write \"", key, "\": {\"name\": \"", example, "\", \"kwargs\": {}}.");
    reader.Require(module != nullptr, key, " is not given", fix);
    reader.Require(module == nullptr || module->is_object(), key, " is not an object", fix);
    return module != nullptr && module->is_object() ? module : nullptr;
  }
  static const nlohmann::json* SequenceMixer(ConfigReader& reader) {
    return Module(reader, "sequence_mixer", "zoology.mixers.attention.MHA");
  }
  static void ReadBlocks(ConfigReader& reader, model::ModelConfig& config) {
    const nlohmann::json *sequence_mixer = SequenceMixer(reader),
                         *state_mixer = Module(reader, "state_mixer", "torch.nn.Identity");
    if (sequence_mixer != nullptr) ReadMixers(reader, *sequence_mixer, config);
    if (state_mixer != nullptr)
      config.channel_mixer = ReadZoologyStateMixer(*state_mixer, config.model_dim, reader);
  }
  static void ReadMambaBlocks(ConfigReader& reader, model::ModelConfig& config) {
    reader.Ignore({"state_mixer"});
    if (const nlohmann::json* sequence_mixer = SequenceMixer(reader))
      config.mixer = ReadZoologyMamba(*sequence_mixer, reader);
    config.channel_mixer = model::ChannelMixerConfig(model::kNoChannelMixer);
    if (!config.final_norm) config.final_norm = config.norm;
    config.norm = model::NormConfig("rms_norm", {{"eps", 1e-5}});
    reader.Require(config.dropout == 0, "resid_dropout is ", config.dropout, ", which a model of ",
                   "MambaBlocks applies only before its last norm. Only 0 is supported.");
    config.embedding.dropout = 0;
  }

  static void RefuseOtherBlocks(ConfigReader& reader) {
    const std::string block = reader.String("block_type", "TransformerBlock");
    reader.Require(block == "TransformerBlock" || block == "MambaBlock", "block_type is '", block,
                   "'. Only TransformerBlock and MambaBlock are supported.");
    for (const char* on : {"pre_norm", "affine_norm"})
      reader.Require(reader.Bool(on, true), on, " is false. Only true is supported.");
  }
};

}  // namespace

std::unique_ptr<Layout> MakeZoology() { return std::make_unique<Zoology>(); }

}  // namespace halflife::interop
