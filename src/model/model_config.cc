#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "core/error.h"
#include "model/language_model.h"

namespace halflife::model {
namespace {

// Reads an object's members; every one must be there, have its type, and be asked for.
class StrictObject {
 public:
  StrictObject(const nlohmann::json& json, std::string name) : json_(json), name_(std::move(name)) {
    Check(json.is_object(), "is not an object");
  }

  template <typename T>
  void Read(const char* key, T* value) {
    ++num_read_;
    Check(json_.contains(key), Concat("lacks '", key, "'"));
    const nlohmann::json& member = json_.at(key);
    if constexpr (std::is_same_v<T, bool>) {
      Check(member.is_boolean(), Concat("has '", key, "' that is not true or false"));
    } else if constexpr (std::is_integral_v<T>) {
      Check(member.is_number_integer(), Concat("has '", key, "' that is not an integer"));
    } else if constexpr (std::is_floating_point_v<T>) {
      Check(member.is_number(), Concat("has '", key, "' that is not a number"));
    } else {
      Check(member.is_string(), Concat("has '", key, "' that is not a string"));
    }
    *value = member.get<T>();
  }
  const nlohmann::json& Member(const char* key) {
    ++num_read_;
    Check(json_.contains(key), Concat("lacks '", key, "'"));
    return json_.at(key);
  }
  // After the last read.
  void CheckNothingElse() const {
    Check(json_.size() == num_read_,
          Concat("has ", json_.size(), " keys, of which this program knows ", num_read_,
                 "; was it written by a newer one?"));
  }
  void Check(bool condition, const std::string& problem) const {
    HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, condition, "model configuration: ", name_, " ",
                problem);
  }

 private:
  const nlohmann::json& json_;
  std::string name_;
  size_t num_read_ = 0;
};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A mixer knows its own problems: it is built once, for its checks alone.
std::vector<std::string> MixerProblems(const ModelConfig& config, const MixerConfig& mixer) {
  ParameterSet parameters;
  try {
    MakeMixer(mixer, {.model_dim = config.model_dim,
                      .norm_eps = config.norm_eps,
                      .initializer_range = config.initializer_range,
                      .prefix = "",
                      .parameters = &parameters});
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    return Lines(error.message());
  }
  return {};
}

std::vector<std::string> HybridProblems(const ModelConfig& config) {
  std::vector<std::string> problems;
  std::set<int64_t> seen;
  for (const HybridLayers& group : config.hybrid) {
    if (group.layers.empty())
      problems.push_back(
          Concat("model: a hybrid group with mixer ", group.mixer.name, " names no layers"));
    for (const int64_t layer : group.layers) {
      if (layer < 0 || layer >= config.num_layers)
        problems.push_back(
            Concat("model: hybrid layer ", layer, "; 0 to ", config.num_layers - 1, " would work"));
      if (!seen.insert(layer).second)
        problems.push_back(Concat("model: hybrid layer ", layer, " is named twice"));
    }
    for (const std::string& problem : MixerProblems(config, group.mixer))
      problems.push_back("hybrid: " + problem);
  }
  return problems;
}

nlohmann::json MixerJson(const MixerConfig& mixer) {
  return {{"name", mixer.name}, {"options", mixer.options}};
}

MixerConfig MixerFromJson(const nlohmann::json& json) {
  MixerConfig config;
  StrictObject mixer(json, "mixer");
  mixer.Read("name", &config.name);
  const nlohmann::json& options = mixer.Member("options");
  mixer.Check(options.is_object(), "has options that are not an object");
  for (const auto& [key, value] : options.items()) {
    mixer.Check(value.is_string(), "has option '" + key + "' that is not a string");
    config.options[key] = value.get<std::string>();
  }
  mixer.CheckNothingElse();
  return config;
}

std::vector<HybridLayers> HybridFromJson(const nlohmann::json& json, const StrictObject& owner) {
  owner.Check(json.is_array(), "has 'hybrid' that is not an array");
  std::vector<HybridLayers> groups;
  for (const nlohmann::json& entry : json) {
    StrictObject group(entry, "hybrid group");
    HybridLayers& layers = groups.emplace_back();
    layers.mixer = MixerFromJson(group.Member("mixer"));
    const nlohmann::json& numbers = group.Member("layers");
    group.Check(numbers.is_array(), "has 'layers' that is not an array");
    for (const nlohmann::json& number : numbers) {
      group.Check(number.is_number_integer(), "has a layer that is not an integer");
      layers.layers.push_back(number.get<int64_t>());
    }
    group.CheckNothingElse();
  }
  return groups;
}

}  // namespace

const MixerConfig& ModelConfig::mixer_of(int64_t layer) const {
  for (const HybridLayers& group : hybrid)
    if (std::ranges::count(group.layers, layer) > 0) return group.mixer;
  return mixer;
}

int64_t ModelConfig::resolved_mlp_dim() const {
  if (mlp_dim > 0) return mlp_dim;
  const auto wanted = static_cast<int64_t>(static_cast<double>(model_dim) * mlp_ratio * 2 / 3);
  return (wanted + 255) / 256 * 256;
}

std::string MixerSummary(const ModelConfig& config) {
  std::map<std::string, int64_t> others;
  int64_t num_others = 0;
  for (const HybridLayers& group : config.hybrid) {
    const auto count = static_cast<int64_t>(group.layers.size());
    num_others += count;
    others[group.mixer.name] += count;
  }
  std::string text = num_others < config.num_layers ? config.mixer.name : std::string();
  for (const auto& [name, count] : others) {
    text += Concat(text.empty() ? "" : " + ", name, " in ", count, " of ", config.num_layers,
                   " layers");
  }
  return text;
}

std::vector<std::string> Problems(const ModelConfig& config) {
  std::vector<std::string> problems;
  const auto require = [&](bool condition, const auto&... pieces) {
    if (!condition) problems.push_back(Concat("model: ", pieces...));
  };
  const auto require_size = [&](const char* name, int64_t size, int64_t most) {
    require(size >= 1, name, " is ", size, "; at least 1 would work");
    require(size <= most, name, " is ", size, "; at most ", most, " would work");
  };
  // Above every real model; within them, counts of parameters and bytes do not overflow.
  constexpr int64_t kMostDims = int64_t{1} << 20, kMostLayers = int64_t{1} << 14;
  require_size("vocab_size", config.vocab_size, INT32_MAX);
  require_size("model_dim", config.model_dim, kMostDims);
  require_size("num_layers", config.num_layers, kMostLayers);
  require(config.mlp_dim <= kMaxWidth, "mlp_dim is ", config.mlp_dim, "; at most ", kMaxWidth,
          " would work");
  require(config.mlp_dim >= 0, "mlp_dim is ", config.mlp_dim,
          "; a width would work, or 0 to derive it from mlp_ratio");
  require(config.mlp_dim != 0 || (config.mlp_ratio > 0 && config.mlp_ratio <= 1e6), "mlp_ratio is ",
          config.mlp_ratio, "; a number above 0 would work (4 is usual)");
  require(config.norm_eps > 0, "norm_eps is ", config.norm_eps,
          "; a number above 0 would work (1e-6 is usual)");
  require(config.dropout >= 0 && config.dropout < 1, "dropout is ", config.dropout,
          "; a number in [0, 1) would work");
  require(config.initializer_range > 0 && std::isfinite(config.initializer_range),
          "initializer_range is ", config.initializer_range,
          "; a number above 0 would work (0.02 is usual)");
  if (config.model_dim < 1 || config.model_dim > kMostDims) return problems;
  require(config.mlp_dim > 0 || config.resolved_mlp_dim() <= kMaxWidth, "mlp_ratio is ",
          config.mlp_ratio, ", which makes the MLP ", config.resolved_mlp_dim(), " wide; at most ",
          kMaxWidth, " would work");
  for (const std::string& problem : MixerProblems(config, config.mixer))
    problems.push_back(problem);
  for (const std::string& problem : HybridProblems(config)) problems.push_back(problem);
  return problems;
}

std::string ToJson(const ModelConfig& config) {
  nlohmann::json json = {{"vocab_size", config.vocab_size},
                         {"model_dim", config.model_dim},
                         {"num_layers", config.num_layers},
                         {"mlp_dim", config.mlp_dim},
                         {"mlp_ratio", config.mlp_ratio},
                         {"norm_eps", config.norm_eps},
                         {"tie_embeddings", config.tie_embeddings},
                         {"dropout", config.dropout},
                         {"initializer_range", config.initializer_range},
                         {"mixer", MixerJson(config.mixer)}};
  // Only where they depart from the default: checkpoints that were written before they existed still agree.
  if (config.mlp_bias) json["mlp_bias"] = true;
  for (const HybridLayers& group : config.hybrid)
    json["hybrid"].push_back({{"layers", group.layers}, {"mixer", MixerJson(group.mixer)}});
  return json.dump(2);
}

ModelConfig ModelConfigFromJson(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, !json.is_discarded(),
              "model configuration: not JSON: '", text.substr(0, 60), "'");
  ModelConfig config;
  StrictObject object(json, "the text");
  object.Read("vocab_size", &config.vocab_size);
  object.Read("model_dim", &config.model_dim);
  object.Read("num_layers", &config.num_layers);
  object.Read("mlp_dim", &config.mlp_dim);
  object.Read("mlp_ratio", &config.mlp_ratio);
  object.Read("norm_eps", &config.norm_eps);
  object.Read("tie_embeddings", &config.tie_embeddings);
  object.Read("dropout", &config.dropout);
  object.Read("initializer_range", &config.initializer_range);
  config.mixer = MixerFromJson(object.Member("mixer"));
  if (json.contains("mlp_bias")) object.Read("mlp_bias", &config.mlp_bias);
  if (json.contains("hybrid")) config.hybrid = HybridFromJson(object.Member("hybrid"), object);
  object.CheckNothingElse();
  const std::vector<std::string> problems = Problems(config);
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, problems.empty(),
              "model configuration: ", problems.empty() ? "" : problems.front());
  return config;
}

}  // namespace halflife::model
