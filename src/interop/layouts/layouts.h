// Inner header of the layouts: their makers, and the frame of config keys that fla's classes share.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "interop/layout.h"

namespace halflife::interop {

#define HL_LAYOUT(Make) std::unique_ptr<Layout> Make();
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT

// A mixer's options with defaults filled in, typed. The mixer itself says what they are.
class Options {
 public:
  Options(const model::MixerConfig& mixer, int64_t model_dim);
  const std::string& Text(const std::string& key) const;
  bool Bool(const std::string& key) const { return Text(key) == "true"; }
  int64_t Int(const std::string& key) const;
  double Double(const std::string& key) const;
  nlohmann::ordered_json Number(const std::string& key) const;  // an integer where it is one

 private:
  std::string mixer_;
  std::map<std::string, std::string> values_;
};

// Builds a mixer's options from a config: only what departs from nothing is left out, so that a
// folder's values hold even if a default of ours changes.
class OptionWriter {
 public:
  explicit OptionWriter(model::MixerConfig& mixer) : mixer_(mixer) {}
  void Int(const std::string& key, int64_t value);
  void Double(const std::string& key, double value);
  void Bool(const std::string& key, bool value);
  void Text(const std::string& key, const std::string& value);

 private:
  model::MixerConfig& mixer_;
};

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
// Of a model in fla's frame: MLP biases, hybrid layers that are not plain softmax.
std::vector<std::string> FlaObstacles(const model::ModelConfig& config);
// fla's `attn`: the softmax layers of a hybrid model.
void ReadFlaHybrid(ConfigReader& reader, model::ModelConfig& config);
nlohmann::ordered_json FlaHybrid(const model::ModelConfig& config);
// "model." before every name but the head's.
std::string FlaName(const std::string& parameter);
// The same for retnet and gla, whose norm of the output is called g_norm where it is not fused with
// the gate.
std::string FlaLinearName(const std::string& parameter, ConfigReader* reader);

// What retnet and gla share.
void ReadFlaLinear(ConfigReader& reader, model::MixerConfig& mixer, int64_t num_heads,
                   double expand_k, double expand_v);
void WriteFlaLinear(const Options& options, nlohmann::ordered_json& json);

}  // namespace halflife::interop
