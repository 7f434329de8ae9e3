#include <nlohmann/json.hpp>

#include <cmath>
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
std::vector<std::string> MixerProblems(const ModelConfig& config) {
  ParameterSet parameters;
  try {
    MakeMixer(config.mixer, {.model_dim = config.model_dim,
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

}  // namespace

int64_t ModelConfig::resolved_mlp_dim() const {
  if (mlp_dim > 0) return mlp_dim;
  const auto wanted = static_cast<int64_t>(static_cast<double>(model_dim) * mlp_ratio * 2 / 3);
  return (wanted + 255) / 256 * 256;
}

std::vector<std::string> Problems(const ModelConfig& config) {
  std::vector<std::string> problems;
  const auto require = [&](bool condition, const auto&... pieces) {
    if (!condition) problems.push_back(Concat("model: ", pieces...));
  };
  require(config.vocab_size >= 1, "vocab_size is ", config.vocab_size, "; at least 1 would work");
  require(config.model_dim >= 1, "model_dim is ", config.model_dim, "; at least 1 would work");
  require(config.num_layers >= 1, "num_layers is ", config.num_layers, "; at least 1 would work");
  require(config.mlp_dim >= 0, "mlp_dim is ", config.mlp_dim,
          "; a width would work, or 0 to derive it from mlp_ratio");
  require(config.mlp_dim != 0 || config.mlp_ratio > 0, "mlp_ratio is ", config.mlp_ratio,
          "; a number above 0 would work (4 is usual)");
  require(config.norm_eps > 0, "norm_eps is ", config.norm_eps,
          "; a number above 0 would work (1e-6 is usual)");
  require(config.dropout >= 0 && config.dropout < 1, "dropout is ", config.dropout,
          "; a number in [0, 1) would work");
  require(config.initializer_range > 0 && std::isfinite(config.initializer_range),
          "initializer_range is ", config.initializer_range,
          "; a number above 0 would work (0.02 is usual)");
  if (config.model_dim >= 1)
    for (const std::string& problem : MixerProblems(config)) problems.push_back(problem);
  return problems;
}

std::string ToJson(const ModelConfig& config) {
  const nlohmann::json json = {
      {"vocab_size", config.vocab_size},
      {"model_dim", config.model_dim},
      {"num_layers", config.num_layers},
      {"mlp_dim", config.mlp_dim},
      {"mlp_ratio", config.mlp_ratio},
      {"norm_eps", config.norm_eps},
      {"tie_embeddings", config.tie_embeddings},
      {"dropout", config.dropout},
      {"initializer_range", config.initializer_range},
      {"mixer", {{"name", config.mixer.name}, {"options", config.mixer.options}}}};
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
  StrictObject mixer(object.Member("mixer"), "mixer");
  mixer.Read("name", &config.mixer.name);
  const nlohmann::json& options = mixer.Member("options");
  mixer.Check(options.is_object(), "has options that are not an object");
  for (const auto& [key, value] : options.items()) {
    mixer.Check(value.is_string(), "has option '" + key + "' that is not a string");
    config.mixer.options[key] = value.get<std::string>();
  }
  mixer.CheckNothingElse();
  object.CheckNothingElse();
  const std::vector<std::string> problems = Problems(config);
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, problems.empty(),
              "model configuration: ", problems.empty() ? "" : problems.front());
  return config;
}

}  // namespace halflife::model
