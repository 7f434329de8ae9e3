// The layers of a class: lists in config.json with one name per layer, and the names of parameters.
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"

namespace halflife::interop {

std::optional<std::vector<int64_t>> ReadLayersOfType(ConfigReader& reader, const std::string& key,
                                                     int64_t num_layers, const LayerTypes& types) {
  const nlohmann::json* list = reader.Member(key);
  if (list == nullptr) return std::nullopt;
  const bool fits = list->is_array() && static_cast<int64_t>(list->size()) == num_layers;
  reader.Require(fits, key, " is not a list with one name for each of the ", num_layers,
                 " layers. Correct the list, or remove the key.");
  if (!fits) return std::nullopt;
  const auto is_in = [](const nlohmann::json& name, const std::vector<const char*>& names) {
    return std::ranges::any_of(names, [&](const char* own) { return name == own; });
  };
  std::vector<int64_t> found;
  for (size_t layer = 0; layer < list->size(); ++layer) {
    const nlohmann::json& name = (*list)[layer];
    const bool wanted = is_in(name, types.wanted);
    reader.Require(wanted || is_in(name, types.other), key, " has ", name.dump().substr(0, 40),
                   " for layer ", layer, ". Use a model that has only ", types.other.front(),
                   " and ", types.wanted.front(), ".");
    if (wanted) found.push_back(static_cast<int64_t>(layer));
  }
  return found;
}

LayerParameter ParseLayerParameter(const std::string& parameter) {
  constexpr std::string_view kLayers = "layers.", kMixer = ".attn.";
  LayerParameter parsed;
  if (!parameter.starts_with(kLayers)) return parsed;
  const char* const end = parameter.data() + parameter.size();
  const auto digits = std::from_chars(parameter.data() + kLayers.size(), end, parsed.layer);
  parsed.of_layer = std::string(digits.ptr, end);
  if (parsed.of_layer.starts_with(kMixer)) parsed.of_mixer = parsed.of_layer.substr(kMixer.size());
  return parsed;
}

}  // namespace halflife::interop
