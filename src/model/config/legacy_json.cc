#include "model/config/legacy_json.h"

#include <nlohmann/json.hpp>

#include <charconv>

#include "core/error.h"
#include "model/mixer.h"

namespace halflife::model {
namespace {

using Json = nlohmann::json;

// Converts `word` to the type of `option`. A word that does not fit is returned as a string, so
// that the reader of the new form reports it.
Json Typed(const Option& option, const std::string& word) {
  const auto number = [&](auto value) {
    const char* end = word.data() + word.size();
    const auto result = std::from_chars(word.data(), end, value);
    return result.ec == std::errc() && result.ptr == end && std::isfinite(double(value))
               ? Json(value)
               : Json(word);
  };
  if (std::holds_alternative<int64_t*>(option.place)) return number(int64_t{});
  if (std::holds_alternative<double*>(option.place)) return number(double{});
  if (std::holds_alternative<bool*>(option.place) && (word == "true" || word == "false"))
    return word == "true";
  return word;
}

// {"name": "gla", "options": {"num_heads": "4"}} -> {"gla": {"num_heads": 4}}
Json MixerOf(const Json& legacy) {
  const auto member = [&](const char* key) {
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, legacy.is_object() && legacy.contains(key),
                "model configuration: mixer lacks '", key, "'");
    return legacy.at(key);
  };
  const Json name = member("name"), words = member("options");
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, name.is_string() && words.is_object(),
              "model configuration: mixer is not a name with an object of options");
  Json options = Json::object();
  for (const VariantInfo& variant : kMixers.variants()) {
    if (variant.name != name) continue;
    const std::unique_ptr<PartOptions> defaults = variant.defaults();
    for (const auto& [key, word] : words.items()) {
      if (key == "retention_norm") continue;  // This option had only one value.
      const std::string today = key == "rotary_base" ? "rope_theta" : key;
      options[today] = word;
      for (const Option& option : defaults->Fields())
        if (option.name == today && word.is_string()) options[today] = Typed(option, word);
    }
  }
  return {{name.get<std::string>(), options}};
}

}  // namespace

bool IsLegacyModelConfig(const Json& json) {
  return json.is_object() && json.contains("mixer") && json.at("mixer").is_object() &&
         json.at("mixer").contains("name");
}

Json FromLegacyModelConfig(const Json& legacy) {
  Json json = legacy;
  const auto move_to = [&](const char* key, Json& place) {
    if (!json.contains(key)) return;
    place = json.at(key);
    json.erase(key);
  };
  Json swiglu = Json::object(), norm = Json::object(), head = Json::object();
  move_to("mlp_dim", swiglu["width"]);
  move_to("mlp_ratio", swiglu["ratio"]);
  swiglu["bias"] = false;
  move_to("mlp_bias", swiglu["bias"]);
  move_to("norm_eps", norm["eps"]);
  move_to("tie_embeddings", head["tied"]);
  json["mixer"] = MixerOf(legacy.at("mixer"));
  json["channel_mixer"] = {{"swiglu", swiglu}};
  json["norm"] = {{"rms_norm", norm}};
  json["head"] = head;
  if (json.contains("hybrid") && json.at("hybrid").is_array()) {
    for (Json& group : json.at("hybrid"))
      if (group.is_object() && group.contains("mixer")) group["mixer"] = MixerOf(group.at("mixer"));
  }
  return json;
}

}  // namespace halflife::model
