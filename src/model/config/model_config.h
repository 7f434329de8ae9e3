// A model as a recipe of parts: sizes, and for each kind of part which variant with which options.
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
#include "model/embedding.h"
#include "model/head.h"
#include "model/mixer.h"
#include "model/norms/norm.h"
#include "model/objectives/objective.h"
#include "model/positions/positions.h"

namespace halflife::model {

// Layers that have another mixer or channel mixer than the rest of the model: those that are named,
// or every `every`-th from `first` on.
struct LayerGroup {
  std::vector<int64_t> layers;  // from 0
  int64_t every = 0, first = 0;
  std::optional<MixerConfig> mixer;  // absent: the model's
  std::optional<ChannelMixerConfig> channel_mixer;

  bool Holds(int64_t layer) const;
  std::vector<int64_t> Numbers(int64_t num_layers) const;  // ascending where a pattern gives them
};

struct ModelConfig {
  int64_t vocab_size = 259;
  int64_t model_dim = 256;
  int64_t num_layers = 6;
  double dropout = 0;  // on the embedding and on each branch before its residual add
  double initializer_range = 0.02;
  std::string initializer = "normal";  // of matrices; or "fan_in" (PartContext::fan_in_init)
  EmbeddingOptions embedding;
  PositionsConfig positions;
  BlockConfig block;
  NormConfig norm;
  std::optional<NormConfig> final_norm;  // before the head; absent: norm
  MixerConfig mixer;
  ChannelMixerConfig channel_mixer;
  HeadOptions head;
  ObjectiveConfig objective;
  std::vector<LayerGroup> hybrid;

  ModelSizes sizes() const { return {.model_dim = model_dim, .num_layers = num_layers}; }
  const MixerConfig& mixer_of(int64_t layer) const;
  const ChannelMixerConfig& channel_mixer_of(int64_t layer) const;
  std::string NameOfMixer(int64_t layer) const;  // "the mixer of layer 0, hyena,"
};

// Calls `visit(name, options)` for every group of options outside `hybrid` that has no variants
// (embedding, head), and `visit(part)` for every choice of a part: what recipes, checkpoints and
// --dry-run go through.
struct PartVisitor {
  std::function<void(const char* name, PartOptions& options)> group;
  std::function<void(PartConfig& part)> part;
};
void VisitParts(ModelConfig& config, const PartVisitor& visitor);

// The config with every option that derives from others at the value in force. Options with
// problems keep theirs.
ModelConfig Resolved(ModelConfig config);

// "gla", or of a hybrid "gla + softmax in 2 of 12 layers".
std::string MixerSummary(const ModelConfig& config);

// All problems at once, one line each with the value met and values that would work; empty: fine.
std::vector<std::string> Problems(const ModelConfig& config);
// The form a checkpoint keeps: every option with its value. FromJson also reads the form of earlier
// programs (config/legacy_json.cc); Error kNoUsableCheckpoint for text that is no such config.
std::string ToJson(const ModelConfig& config);
ModelConfig ModelConfigFromJson(const std::string& json);

}  // namespace halflife::model
