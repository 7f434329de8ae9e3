// The configuration of a model: its sizes, and for each kind of part the chosen variant and its
// options.
//
//   ModelConfig config = {.vocab_size = 259, .model_dim = 256, .num_layers = 6};
//   config.mixer = MixerConfig("gla", {{"num_heads", 4}});
//   const std::vector<std::string> problems = Problems(config);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/blocks/block.h"
#include "model/channel_mixers/channel_mixer.h"
#include "model/mixer.h"
#include "model/norms/norm.h"
#include "model/objectives/objective.h"
#include "model/positions/positions.h"
#include "model/vocabulary_layers.h"

namespace halflife::model {

// Layers whose mixer, channel mixer or block differs from the rest of the model. The layers are
// listed in `layers`, or are every `every`-th layer starting at `first`.
struct LayerGroup {
  std::vector<int64_t> layers;  // Numbers of layers, from 0.
  int64_t every = 0, first = 0;
  std::optional<MixerConfig> mixer;  // Absent: the model's mixer.
  std::optional<ChannelMixerConfig> channel_mixer;
  std::optional<BlockConfig> block;

  bool Holds(int64_t layer) const;
  std::vector<int64_t> Numbers(int64_t num_layers) const;  // Ascending if they come from `every`.
};

struct ModelConfig {
  int64_t vocab_size = 259;
  int64_t model_dim = 256;
  int64_t num_layers = 6;
  double dropout = 0;  // Rate on the embedding and on each branch before its residual add.
  double initializer_range = 0.02;
  // Initialiser of matrices: "normal" or "fan_in" (see PartContext::fan_in_init).
  std::string initializer = "normal";
  EmbeddingOptions embedding;
  PositionsConfig positions;
  BlockConfig block;
  NormConfig norm;
  std::optional<NormConfig> final_norm;  // Before the head. Absent: `norm`.
  MixerConfig mixer;
  ChannelMixerConfig channel_mixer;
  HeadOptions head;
  ObjectiveConfig objective;
  std::vector<LayerGroup> hybrid;

  ModelSizes sizes() const { return {.model_dim = model_dim, .num_layers = num_layers}; }
  const MixerConfig& mixer_of(int64_t layer) const;
  const ChannelMixerConfig& channel_mixer_of(int64_t layer) const;
  const BlockConfig& block_of(int64_t layer) const;
  std::string NameOfMixer(int64_t layer) const;  // "the mixer of layer 0, hyena,"
};

// Calls `group` for every set of options outside `hybrid` that has no variants (embedding, head),
// and `part` for every choice of a variant. Recipes, checkpoints and --dry-run use it to visit all
// options.
struct PartVisitor {
  std::function<void(const char* name, PartOptions& options)> group;
  std::function<void(PartConfig& part)> part;
};
void VisitParts(ModelConfig& config, const PartVisitor& visitor);
// Calls `visit` for the model's mixer, those of hybrid groups, and the mixers inside them.
void VisitMixers(ModelConfig& config, const std::function<void(PartConfig& mixer)>& visit);

// Returns the config with every derived option set to the value in effect. Options of parts with
// problems are unchanged.
ModelConfig Resolved(ModelConfig config);

// Returns for example "gla", or for a hybrid model "gla + softmax in 2 of 12 layers".
std::string MixerSummary(const ModelConfig& config);

// Returns all problems, one line each, with the value found and the values that are allowed. Empty
// if the config is valid.
std::vector<std::string> Problems(const ModelConfig& config);
// Converts to and from the JSON form that checkpoints store: every option with its value.
// ModelConfigFromJson throws kNoUsableCheckpoint if the text is not a valid config.
std::string ToJson(const ModelConfig& config);
ModelConfig ModelConfigFromJson(const std::string& json);

}  // namespace halflife::model
