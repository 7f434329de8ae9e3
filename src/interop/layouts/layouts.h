// Internal header of the layouts: their factory functions, and the config keys that several classes
// share.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "interop/layout.h"

namespace halflife::interop {

#define HL_LAYOUT(Make, model_type, class_name, mixer, exports) std::unique_ptr<Layout> Make();
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT

// No model has more layers. A config with more is reported after it was read.
inline constexpr int64_t kMaxLayers = int64_t{1} << 14;

// The parts that a class supports in addition to its mixer. PartObstacles returns one line for
// every other choice, which then cannot be exported.
enum class MlpBias { kOff, kOn, kOption };
struct ClassParts {
  const char* norm = "rms_norm";
  bool zero_centered_norm = false;
  // Options of softmax layers that this class supports and most classes do not.
  std::vector<std::string> attention_options = {};
  bool has_own_blocks = false;  // Layers may have separate blocks.
  const char* channel_mixer = "swiglu";
  std::vector<std::string> positions = {"none"};
  MlpBias mlp_bias = MlpBias::kOff;
  // True: the layout itself checks the options of mixers, or the channel mixers of hybrid layers.
  bool checks_mixers = false, checks_channel_mixers = false;
  // True: the class has factors on the embedding, on the gate and the output of the MLP, on the
  // residual branches, and on the logits.
  bool embedding_scale = false, mlp_multipliers = false, residual_multiplier = false,
       logit_scale = false;
};
std::vector<std::string> PartObstacles(const model::ModelConfig& config, const ClassParts& parts);
// Returns true for integers that fit an int64_t.
bool IsWholeNumber(double value);
// Returns the value as an integer if it is one.
nlohmann::ordered_json Number(double value);

// A part of a halflife parameter name (`ours`), and its replacement in the class (`theirs`).
struct Renaming {
  const char* ours;
  const char* theirs;
};
// Applies the renamings in order. Each one replaces the first occurrence.
std::string Renamed(std::string parameter, std::span<const Renaming> renamings);

// Reads a list with one name for each layer (config_values.cc). Returns the layers with a name of
// `wanted`, or nullopt if there is no such list. Messages mention the first name of each kind.
struct LayerTypes {
  std::vector<const char*> other, wanted;
};
std::optional<std::vector<int64_t>> ReadLayersOfType(ConfigReader& reader, const std::string& key,
                                                     int64_t num_layers, const LayerTypes& types);

// A parameter of a layer, "layers.3.attn.q_proj.weight".
struct LayerParameter {
  int64_t layer = -1;    // -1: the parameter belongs to no layer
  std::string of_layer;  // ".attn.q_proj.weight"
  std::string of_mixer;  // "q_proj.weight"; empty: the parameter is not one of the mixer
};
LayerParameter ParseLayerParameter(const std::string& parameter);

// Returns the halflife names of the position methods that the softmax classes of transformers have
// (rope_scaling.cc): none, and scalings for long texts.
std::vector<std::string> RopeScalings();
struct RopeSizes {
  int64_t head_dim = 0, max_positions = 0;  // The model's; max_position_embeddings.
  // partial_rotary_factor, if the config has none. 0: the class rotates whole heads only.
  double usual_part = 0;
  bool ignores_outer_part = false;  // The class reads it only inside the object of the rotation.
};
// Reads the positions of the model, and rope_theta and partial_rotary_factor of `attention`, the
// mixer of its softmax layers.
void ReadRope(ConfigReader& reader, const RopeSizes& sizes, model::MixerConfig& attention,
              model::PositionsConfig& positions);
// Writes partial_rotary_factor if `has_part`.
void WriteRope(const model::MixerConfig& attention, const model::PositionsConfig& positions,
               bool has_part, nlohmann::ordered_json& json);
// Adds an obstacle for a yarn whose frequencies the classes compute differently, for heads of this
// rotation.
void AddYarnObstacle(const model::ModelConfig& config, const model::MixerConfig& attention,
                     std::vector<std::string>& lines);
// Returns the number of channels of a head that rotate.
int64_t RotatedChannels(int64_t head_dim, double part);

// The table in which a class looks up activation names. Some names in the table of fla's gla mean
// other functions than in transformers.
enum class ActivationNames { kTransformers, kFla, kTorchscale };
// Returns halflife's name of the activation in `key`, in any spelling of the class.
std::string ReadActivation(ConfigReader& reader, const std::string& key, const std::string& absent,
                           ActivationNames names = ActivationNames::kTransformers);
// Requires that `hidden_act` is SiLU, in either spelling. `spelling` is the class's own, which is
// also its default.
void RequireSwish(ConfigReader& reader, const std::string& spelling);
// Returns the spelling that is written.
std::string WrittenActivation(const std::string& ours,
                              ActivationNames names = ActivationNames::kTransformers);
// Returns the halflife activations that have a name in the class.
std::vector<std::string> NamedActivations(ActivationNames names);

// Ignores keys that `transformers` writes into every config.json and that do not affect the model's
// function.
void IgnoreCommonKeys(ConfigReader& reader);
// Defaults of vocab_size, hidden_size and num_hidden_layers, and of fla's hidden_ratio.
struct FrameDefaults {
  int64_t hidden_size = 2048, num_layers = 24, vocab_size = 32000;
  double hidden_ratio = 4;
};
// fla's frame: sizes, SwiGLU, norm_eps, ties. `tie_word_embeddings` is false by default.
model::ModelConfig ReadFlaFrame(ConfigReader& reader, const FrameDefaults& defaults);
void WriteFlaFrame(const model::ModelConfig& config, nlohmann::ordered_json& json);
// Returns the obstacles of a model in fla's frame: other parts, MLP biases, hybrid layers that are
// not plain softmax.
std::vector<std::string> FlaObstacles(const model::ModelConfig& config);
// GPT-2's frame: sizes, LayerNorm, dropout, ties.
inline constexpr const char* kGpt2Prefix = "transformer.";
model::ModelConfig ReadGpt2Frame(ConfigReader& reader);
// Reads GPT-2's positions and MLP.
void ReadGpt2Mlp(ConfigReader& reader, model::ModelConfig& config);
int64_t ReadGpt2Width(ConfigReader& reader);  // Returns model_dim.
int64_t ReadGpt2Heads(ConfigReader& reader);
std::string Gpt2Name(const std::string& parameter);
// Returns the placement of a matrix. Matrices are [in, out]; those of q, k and v are adjacent
// columns of one matrix.
Placement Gpt2Placement(const std::string& parameter);
// True for a mask buffer of old folders.
bool IsGpt2Mask(const std::string& tensor);

// fla's `attn`: the softmax layers of a hybrid model.
void ReadFlaHybrid(ConfigReader& reader, model::ModelConfig& config);
nlohmann::ordered_json FlaHybrid(const model::ModelConfig& config);
// Adds "model." before every name except the head's.
std::string FlaName(const std::string& parameter);
// The same for retnet and gla, whose output norm is called g_norm if it is not fused with the gate.
std::string FlaLinearName(const std::string& parameter, ConfigReader* reader);

// A class of fla that has fla's frame, one linear mixer, and perhaps hybrid layers of softmax
// attention.
class FlaLayout : public Layout {
 public:
  explicit FlaLayout(const FrameDefaults& frame = {}) : frame_(frame) {}

  std::vector<std::string> Obstacles(const model::ModelConfig& config) const override;
  void WriteConfig(const model::ModelConfig& config, nlohmann::ordered_json& json) const final;
  model::ModelConfig ReadConfig(ConfigReader& reader) const final;
  std::string TensorName(const std::string& parameter, ConfigReader* reader) const override;

 protected:
  // Write and read the keys of the mixer. `config` is complete except for its hybrid layers.
  virtual void WriteMixer(const model::ModelConfig& config, nlohmann::ordered_json& json) const = 0;
  virtual void ReadMixer(ConfigReader& reader, model::ModelConfig& config) const = 0;

 private:
  FrameDefaults frame_;
};

// The prefix of mamba, mamba2 and nemotron_h.
inline constexpr const char* kBackbone = "backbone.";
// Converts a parameter name to the form of mamba and mamba2, whose layers consist of a norm and a
// mixer.
std::string BackboneName(const std::string& parameter);

// Reads the number and widths of the heads of a linear mixer.
void ReadFlaHeads(ConfigReader& reader, model::MixerConfig& mixer, int64_t num_heads,
                  double expand_k, double expand_v);
void WriteFlaHeads(const model::MixerConfig& mixer, nlohmann::ordered_json& json);
// Reads the keys of the short convolutions. conv_size is read only if use_short_conv is true.
void ReadFlaShortConv(ConfigReader& reader, bool by_default, model::MixerConfig& mixer);
void WriteFlaShortConv(const model::MixerConfig& mixer, nlohmann::ordered_json& json);
// Reads elementwise_affine of the output norm. fla reads null as false.
void ReadFlaAffine(ConfigReader& reader, model::MixerConfig& mixer);
// Reads the options of fla's softmax attention, apart from num_heads, which must be set.
void ReadFlaAttention(ConfigReader& reader, model::MixerConfig& mixer);
// Reads the options that retnet and gla share, apart from the heads. `names`: the names of feature
// maps.
void ReadFlaLinear(ConfigReader& reader, model::MixerConfig& mixer, int64_t num_heads,
                   double expand_k, double expand_v, ActivationNames names);
void WriteFlaLinear(const model::MixerConfig& mixer, ActivationNames names,
                    nlohmann::ordered_json& json);

// The limits of the step sizes of Mamba-2 in config.json: a pair of numbers, such as
// `time_step_limit`.
struct StepLimits {
  double least = 0, most = std::numeric_limits<double>::infinity();
  bool operator==(const StepLimits&) const = default;
};

// Returns the default if the key is absent or null.
StepLimits ReadStepLimits(ConfigReader& reader, const char* key);
// Returns the options dt_limit_min and dt_limit_max of a mixer mamba2.
StepLimits StepLimitsOf(const model::MixerConfig& mamba2);
void SetStepLimits(const StepLimits& limits, model::MixerConfig& mamba2);

// Warns that other programs do not apply the limits to generated tokens, unless they are the
// default.
void WarnOfStepLimits(const StepLimits& limits);
// Writes the pair under each of the keys, with that warning. Limits are left out at their default,
// which each class knows.
void WriteStepLimits(const StepLimits& limits, std::initializer_list<const char*> keys,
                     nlohmann::ordered_json& json);

}  // namespace halflife::interop
