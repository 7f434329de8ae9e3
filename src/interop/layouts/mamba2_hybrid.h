// The shared part of the hybrids of Mamba-2 and softmax attention (nemotron_h, granitemoehybrid,
// bamba, falcon_h1): which layers have which mixer, and which options a class can express.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "interop/layouts/layouts.h"

namespace halflife::interop {

inline constexpr const char* kMamba2Mixer = "mamba2";
inline constexpr const char* kSoftmaxMixer = "softmax";

// Adds a line for each option of `part`, which is resolved, that is neither in `expressed` nor has
// the value that it has by default, given the options in `expressed`.
void AddOptionObstacles(const model::PartConfig& part, const model::ModelSizes& sizes,
                        std::initializer_list<const char*> expressed,
                        std::vector<std::string>& lines);

// Returns the numbers of the layers with this mixer, ascending.
std::vector<int64_t> LayersWithMixer(const model::ModelConfig& config, const std::string& mixer);

// The two mixers of a model. Null: no layer has that mixer.
struct HybridMixers {
  const model::MixerConfig* mamba2 = nullptr;
  const model::MixerConfig* softmax = nullptr;
};
// Adds a line for layers with other mixers, and for layers whose options differ from those of an
// earlier layer with the same mixer. Borrows `config`.
HybridMixers FindHybridMixers(const model::ModelConfig& config, std::vector<std::string>& lines);

// Makes a model whose layers have mamba2, except for `softmax_layers`.
void SetHybridMixers(model::MixerConfig mamba2, model::MixerConfig softmax,
                     std::vector<int64_t> softmax_layers, model::ModelConfig& config);

// Reads the sizes of the attention layers. `head_dim` is the default of the key, 0: hidden_size /
// num_attention_heads. The mixer has no rotation.
struct AttentionDefaults {
  int64_t num_heads = 32, num_kv_heads = 8, head_dim = 0;  // num_kv_heads 0: num_heads.
};
model::MixerConfig ReadHybridSoftmax(ConfigReader& reader, int64_t model_dim,
                                     const AttentionDefaults& defaults);
void WriteHybridSoftmax(const model::MixerConfig& softmax, nlohmann::ordered_json& json);

// Reads the keys mamba_* that granitemoehybrid, bamba and falcon_h1 share. `inner_width` is the
// width of all heads. `name_of_width` is the key it comes from, for messages.
model::MixerConfig ReadHybridMamba2(ConfigReader& reader, int64_t inner_width,
                                    const std::string& name_of_width);
void WriteHybridMamba2(const model::MixerConfig& mamba2, nlohmann::ordered_json& json);
// granitemoehybrid and bamba have mamba_expand: all heads are a multiple of hidden_size wide.
// Adds lines for options of mamba2 that both cannot express.
void AddMamba2Obstacles(const model::MixerConfig& mamba2, const model::ModelSizes& sizes,
                        std::vector<std::string>& lines);
// Reads mamba_expand x hidden_size.
int64_t ReadExpandedWidth(ConfigReader& reader, int64_t model_dim);
// Writes the keys of WriteHybridMamba2 and mamba_expand. Null: the model has no Mamba-2 layers. The
// classes still check some sizes, and their defaults do not fit every hidden_size.
void WriteExpandedMamba2(const model::MixerConfig* mamba2, int64_t model_dim,
                         nlohmann::ordered_json& json);
// Reads a factor, 1 if absent, and requires that it is above 0.
double ReadPositiveFactor(ConfigReader& reader, const char* key);

// Reads the keys attention_bias and mamba_proj_bias.
void ReadAttentionBias(ConfigReader& reader, model::MixerConfig& softmax);
// Adds a line if only some of the projections q, k, v and o have biases.
void AddAttentionBiasObstacle(const model::MixerConfig& softmax, std::vector<std::string>& lines);

// Ignores keys of training, of the choice of a kernel, or of a cache.
void IgnoreHybridKeys(ConfigReader& reader);

// Returns the class's name of a parameter. `renamings` are those of the norms and of the MLP. The
// mixer of a layer is called mamba or self_attn, and the parts of a mixer `parallel` are called so.
std::string HybridName(const model::ModelConfig& config, const std::string& parameter,
                       std::span<const Renaming> renamings);
// The same for bamba and falcon_h1, whose MLP is called feed_forward.
std::string FeedForwardName(const model::ModelConfig& config, const std::string& parameter);

}  // namespace halflife::interop
