// The option sets in which mixers are tested, for suites that run on every mixer.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/mixer.h"
#include "model/positions/positions.h"

namespace halflife::model {

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
