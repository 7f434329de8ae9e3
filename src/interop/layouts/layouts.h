// Inner header of the layouts: their makers, and the frame of config keys that fla's classes share.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "interop/layout.h"

namespace halflife::interop {

#define HL_LAYOUT(Make, model_type, exports) std::unique_ptr<Layout> Make();
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT

// The parts that a class has beside its mixer; every other choice is an obstacle.
enum class MlpBias { kOff, kOn, kOption };
struct ClassParts {
  const char* norm = "rms_norm";
  const char* channel_mixer = "swiglu";
  const char* positions = "none";
  MlpBias mlp_bias = MlpBias::kOff;
};
std::vector<std::string> PartObstacles(const model::ModelConfig& config, const ClassParts& parts);
// A number as an integer where it is one.
nlohmann::ordered_json Number(double value);

// A piece of a name of ours, and theirs in its place.
struct Renaming {
  const char* ours;
  const char* theirs;
};
// Takes hold of the first occurrence of each, one after the other.
std::string Renamed(std::string parameter, std::span<const Renaming> renamings);

// Whose names of activations a class looks up: fla's gla has some that mean another function there.
enum class ActivationNames { kTransformers, kFla };
// halflife's name of the activation that `key` holds, in any of their spellings.
std::string ReadActivation(ConfigReader& reader, const std::string& key, const std::string& absent,
                           ActivationNames names = ActivationNames::kTransformers);
// That `hidden_act` is SiLU, in either spelling; the class's own is that of an absent key.
void RequireSwish(ConfigReader& reader, const std::string& spelling);
// The spelling that is written.
std::string WrittenActivation(const std::string& ours,
                              ActivationNames names = ActivationNames::kTransformers);
// Those of ours that have one.
std::vector<std::string> NamedActivations(ActivationNames names);

// Keys that `transformers` itself writes into every config.json and that say nothing about the
// model's function.
void IgnoreCommonKeys(ConfigReader& reader);
// vocab_size, hidden_size, num_hidden_layers, norms, ties: under the names of transformers.
struct FrameDefaults {
  int64_t hidden_size = 2048, num_layers = 24, vocab_size = 32000;
  double hidden_ratio = 4;
};
// fla's frame: sizes, SwiGLU, norm_eps, ties; `tie_word_embeddings` false by default.
model::ModelConfig ReadFlaFrame(ConfigReader& reader, const FrameDefaults& defaults);
void WriteFlaFrame(const model::ModelConfig& config, nlohmann::ordered_json& json);
// Of a model in fla's frame: other parts, MLP biases, hybrid layers that are not plain softmax.
std::vector<std::string> FlaObstacles(const model::ModelConfig& config);
// GPT-2's frame: sizes, LayerNorm, dropout, ties.
inline constexpr const char* kGpt2Prefix = "transformer.";
model::ModelConfig ReadGpt2Frame(ConfigReader& reader);
// Its positions and its MLP.
void ReadGpt2Mlp(ConfigReader& reader, model::ModelConfig& config);
int64_t ReadGpt2Width(ConfigReader& reader);  // model_dim
int64_t ReadGpt2Heads(ConfigReader& reader);
std::string Gpt2Name(const std::string& parameter);
// Matrices are [in, out], with those of q, k and v side by side in one.
Placement Gpt2Placement(const std::string& parameter);
// A buffer of old folders.
bool IsGpt2Mask(const std::string& tensor);

// fla's `attn`: the softmax layers of a hybrid model.
void ReadFlaHybrid(ConfigReader& reader, model::ModelConfig& config);
nlohmann::ordered_json FlaHybrid(const model::ModelConfig& config);
// "model." before every name but the head's.
std::string FlaName(const std::string& parameter);
// The same for retnet and gla, whose norm of the output is called g_norm where it is not fused with
// the gate.
std::string FlaLinearName(const std::string& parameter, ConfigReader* reader);

// The heads of linear mixers.
void ReadFlaHeads(ConfigReader& reader, model::MixerConfig& mixer, int64_t num_heads,
                  double expand_k, double expand_v);
void WriteFlaHeads(const model::MixerConfig& mixer, nlohmann::ordered_json& json);
// What retnet and gla share beyond them; `names` are those of the feature map.
void ReadFlaLinear(ConfigReader& reader, model::MixerConfig& mixer, int64_t num_heads,
                   double expand_k, double expand_v, ActivationNames names);
void WriteFlaLinear(const model::MixerConfig& mixer, ActivationNames names,
                    nlohmann::ordered_json& json);

}  // namespace halflife::interop
