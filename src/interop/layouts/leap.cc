// Checkpoints of the LEAP authors, and of the Fastformer in their repository: a decoder with
// learned positions, LayerNorm and an MLP of exact GELU. Releases differ in their mixer, biases and
// names. The keys in config.json identify the release, because each writes its own options; the
// key "preset" names the release explicitly.
#include <map>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

// The properties of one release's decoders, and their names.
struct Release {
  const char* preset;
  bool mlp_bias, head_bias;
  const char* norm;    // Name of the norm before the mixer.
  const char* mixer;   // Prefix of the mixer's matrices.
  bool drops_outside;  // Its only dropout is equivalent to one on the mixer's output.
  // The embedding has a norm, the mixer's residual starts at its norm's output, there is no norm
  // before the head, and logits are divided by sqrt(D).
  bool seed_frame = false;
};
constexpr Release kLeapReleases[] = {
    {"leap_v011", false, true, ".attention.attn_norm.", ".attention.", true},
    {"leap_v101", true, false, ".attn_norm.", ".", false},
    {"leap_latest", true, false, ".attn_norm.", ".leap.", false}};
constexpr Release kFastformerReleases[] = {
    {"fastformer_seed", false, true, ".attention.attn_norm.", ".attention.", false, true},
    {"fastformer_v011", false, true, ".attention.attn_norm.", ".attention.", false},
    {"fastformer_latest", false, true, ".attention.attn_norm.", ".attention.", false}};

// Returns the release with this name. Reports an unknown name as a problem.
const Release& Named(std::span<const Release> releases, const std::string& name,
                     ConfigReader& reader) {
  for (const Release& release : releases)
    if (name == release.preset) return release;
  const auto preset = [](const Release& release) { return release.preset; };
  reader.Require(false, "preset is '", name, "'. Use one of ", Join(releases, ", ", preset), ".");
  return releases.back();
}

void SetRescale(ConfigReader& reader, const char* key, model::MixerConfig& mixer) {
  if (!reader.Has(key)) return;
  const double rescale = reader.Double(key, 1);
  reader.Require(rescale > 0, key, " is ", rescale,
                 ". Only numbers above 0 are supported (for example 10).");
  mixer.Set("rescale", rescale);
}

// Reads a number under `key`, or under `other`, its name in other releases.
int64_t ReadEither(ConfigReader& reader, const char* key, const char* other, int64_t absent) {
  return reader.Int(key, reader.Int(other, absent));
}
// The first Fastformer uses the names of transformers for its sizes, and has no windows.
bool IsFirst(ConfigReader& reader) { return reader.Has("num_hidden_layers"); }

// Reads the windows. A window of at least the model's positions covers the whole row, which is 0 in
// halflife.
std::vector<int64_t> ReadWindows(ConfigReader& reader, const nlohmann::json& sizes,
                                 const model::ModelConfig& config, int64_t positions) {
  std::vector<int64_t> windows;
  for (const nlohmann::json& size : sizes) {
    const bool valid =
        size.is_number_integer() && !(size.is_number_unsigned() && size > INT64_MAX) && size >= 1;
    reader.Require(valid, "window_sizes holds ", size.dump().substr(0, 40),
                   ". Only numbers from 1 on are supported.");
    windows.push_back(valid && size < positions ? size.get<int64_t>() : 0);
  }
  const bool fits = static_cast<int64_t>(windows.size()) == config.num_layers;
  reader.Require(fits, "window_sizes has ", windows.size(), " windows for ", config.num_layers,
                 " layers. Only one window per layer is supported.");
  if (!fits) windows.clear();
  return windows;
}

// Sets the windows of config.mixer, and adds groups for layers whose window differs from the first
// one.
void SetWindows(ConfigReader& reader, int64_t positions, model::ModelConfig& config) {
  const bool local = reader.Bool("use_local_att", !IsFirst(reader));
  const nlohmann::json* sizes = reader.Member("window_sizes");
  if (sizes == nullptr) {
    if (!local) config.mixer.Set("windows", std::string("same"));
    config.mixer.Set("max_length", positions);
    return;
  }
  reader.Require(sizes->is_array() && !sizes->empty(),
                 "window_sizes is not a list. Only null or one window per layer is supported.");
  if (!sizes->is_array()) return;
  const std::vector<int64_t> windows = ReadWindows(reader, *sizes, config, positions);
  if (windows.empty()) return;
  config.mixer.Set("windows", std::string("same"));
  config.mixer.Set("window", windows.front());
  std::map<int64_t, model::LayerGroup> groups;
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    if (windows[layer] == windows.front()) continue;
    model::LayerGroup& group = groups[windows[layer]];
    group.layers.push_back(static_cast<int64_t>(layer));
    group.mixer = config.mixer;
    group.mixer->Set("window", windows[layer]);
  }
  for (auto& [window, group] : groups) config.hybrid.push_back(std::move(group));
}

class LeapAuthors : public ImportOnlyLayout {
 public:
  model::ModelConfig ReadConfig(ConfigReader& reader) const override {
    const Release& release = ReleaseOf(reader);
    IgnoreCommonKeys(reader);
    model::ModelConfig config;
    config.vocab_size = reader.Int("vocab_size", 32100);
    config.model_dim = reader.Int("hidden_size", 256);
    config.num_layers = ReadEither(reader, "n_layer", "num_hidden_layers", 4);
    config.dropout = reader.Double("hidden_dropout_prob", 0.1);
    config.initializer_range = reader.Double("initializer_range", 0.02);
    config.norm = model::NormConfig("layer_norm", {{"eps", 1e-5}});
    config.head.tied = reader.Bool("tie_word_embeddings", true);
    config.head.bias = release.head_bias;
    const int64_t positions = ReadEither(reader, "n_positions", "max_position_embeddings", 1024);
    config.positions = model::PositionsConfig("learned", {{"max_positions", positions}});
    config.channel_mixer = model::ChannelMixerConfig("mlp", {{"width", 4 * config.model_dim},
                                                             {"activation", std::string("gelu")},
                                                             {"bias", release.mlp_bias}});
    config.mixer = model::MixerConfig(mixer(), {{"preset", std::string(release.preset)}});
    config.mixer.Set("num_heads", ReadEither(reader, "n_head", "n_heads", 4));
    if (!release.drops_outside) config.mixer.Set("dropout", config.dropout);
    ReadRescale(release, reader, config.mixer);
    SetWindows(reader, positions, config);
    if (release.seed_frame) SetSeedFrame(reader, config);
    return config;
  }

  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override {
    const Release& release = ReleaseOf(*reader);
    const Renaming top[] = {{"embeddings.", "word_embedding."}, {"lm_head.", "proj_logits."}};
    constexpr std::string_view kEmbeddingNorm = "embedding_norm.";
    if (parameter.starts_with("norm.")) return "last_" + parameter;
    if (parameter.starts_with(kEmbeddingNorm))
      return decoder() + "LayerNorm." + parameter.substr(kEmbeddingNorm.size());
    if (!parameter.starts_with("layers.") && !parameter.starts_with("positions."))
      return Renamed(parameter, top);
    const Renaming within[] = {
        {"layers.", "decoders."},      {"positions.", "position_embeddings."},
        {".mlp.up_proj.", ".boom."},   {".mlp.down_proj.", ".unboom."},
        {".attn_norm.", release.norm}, {".mlp_norm.", ".boom_norm."},
        {".attn.", release.mixer},     {".Wpooled.", ".attn_proj."},
        {".mix_norm.", ".mid_norm."},
    };
    return decoder() + Renamed(parameter, within);
  }

  // True for parameters that the first release declares without using them.
  bool IsUnused(const std::string& tensor) const override {
    return tensor.ends_with(".attention.vec") ||
           tensor.find(".attention.qk_norm.") != std::string::npos;
  }

 private:
  static void SetSeedFrame(ConfigReader& reader, model::ModelConfig& config) {
    config.embedding.norm = true;
    config.block.Set("mixer_residual_post_norm", true);
    config.final_norm = model::NormConfig("none");
    config.head.logit_scale = 0;
    reader.Require(!reader.Bool("convolve", false),
                   "convolve is true: its convolution is not read. Use a model without it.");
    // Keys of the convolution and of training.
    reader.Ignore({"groups", "kernel_size", "label_smoothing"});
  }

 protected:
  // Returns the prefix of all names except those of the embedding, last norm and head.
  virtual std::string decoder() const = 0;
  virtual const Release& ReleaseOf(ConfigReader& reader) const = 0;
  virtual void ReadRescale(const Release& release, ConfigReader& reader,
                           model::MixerConfig& mixer) const = 0;
};

class Leap : public LeapAuthors {
 public:
 protected:
  std::string decoder() const override { return "leap_model."; }

  // Only 1.0.1 has a rescale factor, and only 0.1.1 uses the key n_heads.
  const Release& ReleaseOf(ConfigReader& reader) const override {
    const bool old = reader.Has("n_heads") && !reader.Has("n_head");
    const char* guess = reader.Has("rescale") ? "leap_v101" : old ? "leap_v011" : "leap_latest";
    return Named(kLeapReleases, reader.String("preset", guess), reader);
  }

  void ReadRescale(const Release& release, ConfigReader& reader,
                   model::MixerConfig& mixer) const override {
    reader.Require(!reader.Bool("rnn", false), "rnn is true. Only false is supported.");
    if (release.preset != std::string("leap_v101")) return reader.Ignore({"rescale"});
    reader.Require(reader.Has("rescale"), "rescale is null, which means 1.0.1 without its norms. ",
                   "Only numbers are supported (for example 10).");
    SetRescale(reader, "rescale", mixer);
  }
};

class Fastformer : public LeapAuthors {
 public:
 protected:
  std::string decoder() const override { return "fastformer_model."; }

  const Release& ReleaseOf(ConfigReader& reader) const override {
    const char* guess = reader.Has("rescale") ? "fastformer_latest"
                        : IsFirst(reader)     ? "fastformer_seed"
                                              : "fastformer_v011";
    return Named(kFastformerReleases, reader.String("preset", guess), reader);
  }

  // Reads the factor. A version between the two has the matrices of 0.1.1, and a factor with
  // another name.
  void ReadRescale(const Release& release, ConfigReader& reader,
                   model::MixerConfig& mixer) const override {
    if (release.seed_frame) return;  // This release divides by the square root of a head's width.
    const bool latest = release.preset == std::string("fastformer_latest");
    SetRescale(reader, latest ? "rescale" : "rescale_value", mixer);
  }
};

}  // namespace

std::unique_ptr<Layout> MakeLeap() { return std::make_unique<Leap>(); }
std::unique_ptr<Layout> MakeFastformer() { return std::make_unique<Fastformer>(); }

}  // namespace halflife::interop
