// The option sets in which mixers are tested, for suites that run on every mixer.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/mixer.h"
#include "model/mixers/parallel.h"
#include "model/positions/positions.h"

namespace halflife::model {

inline std::vector<MixerConfig> ParallelForms() {
  const MixerConfig mamba2(
      "mamba2", {{"num_heads", 4}, {"head_dim", 4}, {"state_size", 3}, {"norm", "none"}});
  return {ParallelMixer({ParallelPart(mamba2, 1.5, 0.5),
                         ParallelPart(MixerConfig("softmax", {{"num_heads", 2}}), 1, 0.75)}),
          ParallelMixer({ParallelPart(MixerConfig("softmax", {{"num_heads", 2}, {"dropout", 0.1}})),
                         ParallelPart(MixerConfig("gated_delta_net", {{"num_heads", 2}})),
                         ParallelPart(MixerConfig("softmax", {{"num_heads", 4}, {"window", 9}}))})};
}

// Returns small configurations of a mixer, for models with model_dim 16, that together cover every
// code path. A mixer that the table does not list has one with the default options.
inline std::vector<MixerConfig> TestForms(const std::string& mixer) {
  using Options = std::vector<Assignment>;
  const auto with = [](Options options, const Options& more) {
    options.insert(options.end(), more.begin(), more.end());
    return options;
  };
  const auto pool = [](const char* preset, int64_t window) -> Options {
    return {{"preset", preset}, {"num_heads", 2}, {"windows", "same"}, {"window", window}};
  };
  const Options narrow = {{"num_heads", 4}, {"num_kv_heads", 1}},
                large_eps = {{"feature_dim", 4}, {"eps", 0.5}},
                latent = {{"num_heads", 2},        {"kv_lora_rank", 12}, {"qk_nope_head_dim", 6},
                          {"qk_rope_head_dim", 4}, {"v_head_dim", 8},    {"rope_theta", 100.0}};
  const std::map<std::string, std::vector<Options>> table = {
      {"retention",
       {{{"num_heads", 2}},
        {{"num_heads", 4}, {"num_kv_heads", 2}, {"use_output_gate", false}},
        {{"num_heads", 2}, {"feature_map", "gelu"}, {"norm_affine", false}}}},
      {"gla",
       {{{"num_heads", 2}},
        {{"num_heads", 4}, {"num_kv_heads", 2}, {"use_short_conv", true}},
        {{"num_heads", 2}, {"use_short_conv", true}, {"conv_size", 1}},
        {{"num_heads", 2}, {"feature_map", "silu"}}}},
      {"retnet",
       {{{"num_heads", 2}},
        {{"num_heads", 4}, {"num_kv_heads", 2}, {"decay", "range"}},
        {{"num_heads", 2}, {"row_norm", "none"}, {"expand_v", 1.0}},
        {{"num_heads", 4}, {"num_kv_heads", 2}, {"row_norm", "torchscale_parallel"}}}},
      {"d2d",
       {{{"num_heads", 2}},
        {{"num_heads", 2}, {"feature_map", "exp"}, {"bias", false}},
        {{"num_heads", 4}, {"max_log_decay", 0}},
        {{"num_heads", 2}, {"legacy_view", 160}, {"decay_scale", 0.1}},
        {{"num_heads", 2}, {"decay", "alibi"}, {"feature_map", "exp"}},
        {{"num_heads", 2}, {"decay", "trained_alibi"}},
        {{"num_heads", 2}, {"decay", "none"}, {"rope_theta", 10000}},
        {{"num_heads", 2}, {"decay", "none"}, {"rope_theta", 10000}, {"feature_map", "exp"}},
        {{"num_heads", 2}, {"decay", "none"}}}},
      {"delta_net",
       {{{"num_heads", 2}},
        {{"num_heads", 2},
         {"expand_v", 0.5},
         {"use_output_gate", true},
         {"allow_neg_eigval", true}},
        {{"num_heads", 2}, {"use_short_conv", false}, {"use_beta", false}},
        {{"num_heads", 2}, {"qk_norm", "sum"}, {"qk_activation", "elu"}}}},
      {"gated_delta_net",
       {{{"num_heads", 2}},
        {{"num_heads", 1},
         {"num_v_heads", 2},
         {"head_dim", 8},
         {"expand_v", 2.0},
         {"allow_neg_eigval", true},
         {"output_gate", "sigmoid"}},
        {{"num_heads", 1}, {"conv_size", 1}},
        {{"num_heads", 2}, {"use_short_conv", false}, {"output_gate", "none"}}}},
      {"gated_delta_product",
       {{{"num_heads", 2}},
        {{"num_heads", 1},
         {"num_v_heads", 2},
         {"head_dim", 8},
         {"expand_v", 2.0},
         {"allow_neg_eigval", true},
         {"num_householder", 3},
         {"use_forget_gate", false}},
        {{"num_heads", 2},
         {"use_short_conv", false},
         {"num_householder", 1},
         {"use_output_gate", false}}}},
      {"kda",
       {{{"num_heads", 2}},
        {{"num_heads", 1},
         {"num_v_heads", 2},
         {"head_dim", 8},
         {"expand_v", 2.0},
         {"allow_neg_eigval", true},
         {"lower_bound", -5.0}},
        {{"num_heads", 2}, {"use_short_conv", false}, {"gate_bias", false}}}},
      {"hgrn2",
       {{{"num_heads", 2}},
        {{"num_heads", 4}, {"use_short_conv", true}, {"norm_affine", false}},
        {{"num_heads", 1}, {"use_lower_bound", false}}}},
      {"gsa",
       {{{"num_heads", 2}, {"num_slots", 6}},
        {{"num_heads", 4},
         {"num_kv_heads", 2},
         {"num_slots", 5},
         {"use_short_conv", true},
         {"gate_normaliser", 1.0}},
        {{"num_heads", 2},
         {"num_slots", 3},
         {"expand_k", 0.5},
         {"feature_map", "t2r"},
         {"norm_affine", false}}}},
      {"lightning",
       {{{"num_heads", 2}},
        {{"num_heads", 3}, {"head_dim", 4}},
        {{"num_heads", 4}, {"decay", "linear"}}}},
      // relu and dpfp have one narrow key head. With more channels, a key of the conformance suite
      // lies so close to the kink at 0 that finite differences would cross it.
      {"linear_attention",
       {{{"num_heads", 2}},
        {{"num_heads", 4}, {"num_kv_heads", 2}, {"feature_map", "exp"}},
        {{"num_heads", 2},
         {"feature_map", "elementwise_product"},
         {"normalise", false},
         {"output_norm", true}},
        {{"num_heads", 2}, {"feature_map", "hedgehog"}, {"tie_feature_map_qk", true}},
        {{"num_heads", 2},
         {"tie_feature_map_qk", true},
         {"norm_k", true},
         {"normalise", false},
         {"output_norm", true}},
        {{"num_heads", 2}, {"feature_map", "t2r"}, {"normalise", false}, {"expand_v", 2}},
        with(narrow, {{"feature_map", "dpfp"}, {"normalise", false}}),
        with(narrow, {{"feature_map", "relu"},
                      {"normalise", false},
                      {"output_norm", true},
                      {"norm_affine", false}}),
        {{"num_heads", 2}, {"norm_q", true}, {"norm_k", true}, {"normalise", false}}}},
      // With 3 heads, 16 channels give 5 per head and leave one channel unused.
      {"based",
       {{{"num_heads", 2}, {"feature_dim", 4}},
        {{"num_heads", 3}, {"feature_dim", 5}, {"eps", 0.5}}}},
      // The eps is large: the similarities of the first tokens may be close to 0, where finite
      // differences of a quotient are inaccurate.
      {"rebased",
       {with({{"num_heads", 2}}, large_eps),
        with({{"num_heads", 3}, {"norm_scope", "per_head"}, {"shared_affine", true}}, large_eps),
        with({{"num_heads", 2}, {"use_beta", false}, {"kernel", "sq_elementwise"}}, large_eps),
        with({{"num_heads", 2}, {"use_gamma", false}, {"normalize", false}}, large_eps),
        with({{"num_heads", 2}, {"use_gamma", false}, {"use_beta", false}, {"normalize", false}},
             large_eps)}},
      {"softmax",
       {{{"num_heads", 2}},
        {{"num_heads", 2}, {"head_dim", 12}, {"qkv_bias", true}, {"out_bias", true}},
        {{"num_heads", 4}, {"num_kv_heads", 2}, {"qk_norm", true}, {"window", 20}},
        {{"num_heads", 2}, {"rope_theta", 0}, {"dropout", 0.1}},
        {{"num_heads", 2}, {"causal", false}, {"window", 15}},
        {{"num_heads", 2}, {"block", 24}, {"sinks", 3}, {"cos_scale", 5.0}},
        {{"num_heads", 4},
         {"num_kv_heads", 2},
         {"cos_scale", 3.0},
         {"cos_scale_learned", true},
         {"query_scale", "info"},
         {"query_scale_mode", "train"},
         {"query_scale_length", 32}},
        {{"num_heads", 4},
         {"num_kv_heads", 2},
         {"head_dim", 8},
         {"qk_norm", true},
         {"qk_norm_zero_centered", true},
         {"output_gate", "sigmoid"},
         {"partial_rotary_factor", 0.5}},
        {{"num_heads", 2},
         {"qkv_bias", true},
         {"output_gate", "sigmoid"},
         {"qk_norm", true},
         {"qk_norm_over", "all_heads"},
         {"window", 20},
         {"score_scale", 0.5},
         {"key_multiplier", 0.25}}}},
      {"gau",
       {{{"key_dim", 8}},
        {{"key_dim", 8}, {"width", 24}, {"normaliser", "squared_relu"}, {"bias", true}},
        {{"key_dim", 8}, {"normaliser", "softmax_plus"}, {"window", 20}, {"dropout", 0.1}},
        {{"key_dim", 8},
         {"cos_scale", 3.0},
         {"query_scale", "info"},
         {"query_scale_mode", "train"},
         {"query_scale_length", 32}},
        {{"key_dim", 8}, {"causal", false}},
        {{"key_dim", 8}, {"causal", false}, {"normaliser", "squared_relu"}, {"window", 12}},
        {{"key_dim", 8}, {"causal", false}, {"normaliser", "softmax_plus"}, {"cos_scale", 3.0}}}},
      {"mla",
       {latent, with(latent, {{"q_lora_rank", 10}, {"bias", true}, {"num_heads", 3}}),
        with(latent, {{"rope_theta", 0.0}, {"qk_rope_head_dim", 3}, {"v_head_dim", 5}})}},
      {"mamba",
       {{{"d_state", 5}},
        {{"d_state", 3}, {"d_conv", 2}, {"expand", 1}, {"dt_rank", 2}, {"mamba_init", "fork"}},
        {{"d_conv", 1}}}},
      {"mamba2",
       {{{"num_heads", 4}, {"head_dim", 4}, {"state_size", 5}},
        {{"num_heads", 4},
         {"head_dim", 6},
         {"state_size", 4},
         {"num_groups", 2},
         {"conv_kernel", 3},
         {"use_bias", true},
         {"norm", std::string("norm_first")},
         {"dt_limit_min", 0.01},
         {"dt_limit_max", 0.8}},
        {{"head_dim", 16},
         {"state_size", 3},
         {"conv_kernel", 1},
         {"num_groups", 2},
         {"use_conv_bias", false},
         {"norm", std::string("none")},
         {"a_init", std::string("heads")},
         {"z_multiplier", 0.5},
         {"x_multiplier", 1.25},
         {"b_multiplier", 0.75},
         {"c_multiplier", 2.0},
         {"dt_multiplier", 1.5}},
        {{"num_heads", 2}, {"state_size", 3}, {"num_groups", 2}, {"use_in_bias", true}}}},
      {"rwkv4", {{}, {{"wkv_dtype", "bf16"}, {"attention_dim", 40}}}},
      {"rwkv7",
       {{{"head_dim", 8},
         {"decay_low_rank_dim", 6},
         {"gate_low_rank_dim", 5},
         {"a_low_rank_dim", 4},
         {"value_residual", false}},
        {{"head_dim", 4}, {"value_residual", false}, {"key_eps", 1e-24}}}},
      {"rwkv_channel_mix", {{}, {{"form", "rwkv7"}, {"width", 24}}}},
      {"base_conv",
       {{},
        {{"kernel_size", 4}, {"use_act", true}},
        {{"kernel_size", 1}},
        {{"kernel_size", -1}, {"filter_len", 140}, {"use_act", true}}}},
      {"gated_conv", {{}, {{"expand", 2}, {"conv_size", 1}}}},
      {"hyena",
       {{{"filter_len", 2048}, {"filter_width", 8}},
        {{"filter_len", 130}, {"filter_width", 6}, {"conv_size", 1}}}},
      {"leap",
       {{{"num_heads", 2}, {"rescale", 2.0}},
        pool("leap_v011", 0),
        pool("leap_v011", 13),
        pool("leap_v012", 3),
        pool("leap_latest", 7),
        pool("leap_latest", 2)}},
      {"fastformer",
       {{{"num_heads", 2}, {"rescale", 4.0}},
        pool("fastformer_latest", 6),
        pool("fastformer_v011", 0),
        pool("fastformer_seed", 0),
        pool("fastformer_seed", 7),
        pool("additive_readme", 0),
        pool("additive_readme", 2)}},
      // Mixers of out_of_tree.
      {"toy", {{{"num_heads", 2}}, {{"num_heads", 4}, {"half_life", 0.5}}}},
      {"toy_delta", {{{"num_heads", 2}}, {{"num_heads", 4}}}},
  };
  if (mixer == "parallel") return ParallelForms();
  const auto found = table.find(mixer);
  if (found == table.end()) return {MixerConfig(mixer)};
  std::vector<MixerConfig> forms;
  for (const Options& options : found->second) forms.emplace_back(mixer, options);
  return forms;
}

// A mixer, and for layers of attention the model's position method.
struct MixerForm : MixerConfig {
  PositionsConfig positions;
};

// Returns, for example, "gla_num_heads_2".
inline std::string NameOf(const PartConfig& given) {
  PartConfig form = given;
  const PartConfig usual(form.kind(), form.name());
  std::string name = form.name();
  for (const Assignment& option : form.Values()) {
    for (const Assignment& other : usual.Values())
      if (option.name == other.name && option.value != other.value)
        name += "_" + option.name + "_" + Text(option.value);
  }
  for (const OptionList& list : form.options().Lists())
    for (size_t i = 0; i < list.size(); ++i)
      for (const PartConfig* part : list.at(i).Parts()) name += "_" + NameOf(*part);
  return name;
}
inline std::string NameOf(const MixerForm& form) {
  const std::string name = NameOf(static_cast<const PartConfig&>(form));
  return form.positions.name() == "none" ? name : name + "_" + NameOf(form.positions);
}
// GoogleTest finds it by argument-dependent lookup.
inline void PrintTo(const MixerForm& form, std::ostream* out) { *out << NameOf(form); }

}  // namespace halflife::model

namespace halflife::test {

// Returns position methods of attention with options that reach every path within a few hundred
// tokens.
inline std::vector<model::PositionsConfig> AttentionPositionsForms() {
  using Options = std::vector<model::Assignment>;
  const std::map<std::string, std::vector<Options>> small = {
      {"xpos", {{{"scale_base", 64.0}}}},
      {"t5", {{{"num_buckets", int64_t{8}}, {"max_distance", int64_t{50}}}}},
      {"interpolated", {{{"factor", 3.0}}}},
      {"ntk_aware", {{{"factor", 3.0}}}},
      {"yarn", {{{"factor", 4.0}, {"length", int64_t{64}}}}},
      {"llama3", {{{"factor", 4.0}, {"length", int64_t{64}}}}},
      {"rerope", {{{"window", int64_t{20}}}, {{"window", int64_t{20}}, {"leak", int64_t{4}}}}},
      {"streaming_llm", {{{"sinks", int64_t{3}}, {"window", int64_t{20}}}}},
      {"lm_infinite", {{{"sinks", int64_t{3}}, {"window", int64_t{20}}}}}};
  std::vector<model::PositionsConfig> forms;
  for (const std::string& name : NamesOf(model::kPositions)) {
    model::ParameterSet parameters;
    const model::PartContext context = {.sizes = {.model_dim = 16, .num_layers = 1},
                                        .parameters = &parameters};
    if (!MakePositions(model::PositionsConfig(name), context)->in_attention()) continue;
    const auto found = small.find(name);
    if (found == small.end()) {
      forms.emplace_back(name);
    } else {
      for (const Options& options : found->second) forms.emplace_back(name, options);
    }
  }
  return forms;
}

inline std::vector<model::MixerForm> AllMixerForms() {
  std::vector<model::MixerForm> forms;
  for (const std::string& name : NamesOf(model::kMixers))
    for (const model::MixerConfig& form : model::TestForms(name)) forms.push_back({form, {}});
  // A factor on whole scores, biases included.
  forms.push_back({model::MixerConfig("softmax", {{"num_heads", int64_t{2}},
                                                  {"query_scale", "info"},
                                                  {"query_scale_mode", "train"},
                                                  {"query_scale_length", int64_t{32}},
                                                  {"query_scale_bias", true}}),
                   model::PositionsConfig("kerple_log")});
  for (const model::PositionsConfig& positions : AttentionPositionsForms())
    forms.push_back({model::MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"qkv_bias", true}}),
                     positions});
  return forms;
}

// Returns a valid test name.
inline std::string TestNameOf(const model::MixerForm& form) {
  std::string name = model::NameOf(form);
  for (char& c : name)
    if (c == '.' || c == '-') c = '_';
  return name;
}

}  // namespace halflife::test
