// Reads and writes a model configuration as JSON, the form in which checkpoints store it.
#include "model/config/model_config.h"

#include <nlohmann/json.hpp>

#include <cmath>

#include "core/error.h"
#include "core/nearest.h"

namespace halflife::model {
namespace {

using Json = nlohmann::json;

// Throws kNoUsableCheckpoint, the error code of every failure in this file.
void Check(bool condition, const std::string& where, const std::string& problem) {
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, condition, "model configuration: ", where, " ",
              problem);
}

Json ToJson(PartConfig& part);

Json ToJson(PartOptions& options) {
  Json json = Json::object();
  for (const Option& option : options.Fields()) json[option.name] = model::ToJson(option.value());
  for (PartConfig* part : options.Parts()) json[part->kind().name] = ToJson(*part);
  for (const OptionList& list : options.Lists()) {
    Json& entries = json[list.name] = Json::array();
    for (size_t i = 0; i < list.size(); ++i) entries.push_back(ToJson(list.at(i)));
  }
  return json;
}

Json ToJson(PartConfig& part) { return {{part.name(), ToJson(part.options())}}; }

OptionValue ValueOf(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  const std::string text = json.get<std::string>();
  if (text == "inf" || text == "-inf") return text == "inf" ? HUGE_VAL : -HUGE_VAL;
  return text;
}

void ReadPart(const Json& json, PartConfig& part);
void ReadOptions(const Json& json, const std::string& where, PartOptions& options);

void ReadList(const Json& json, const std::string& where, const OptionList& list) {
  Check(json.is_array(), where, Concat("has '", list.name, "', which is not an array"));
  list.clear();
  for (const Json& entry : json) ReadOptions(entry, Concat(where, ", ", list.name), list.add());
}

// Reads a part or a list of the options. Returns false if `key` is the name of neither.
bool ReadInside(const std::string& key, const Json& json, const std::string& where,
                PartOptions& options) {
  for (PartConfig* part : options.Parts()) {
    if (key != part->kind().name) continue;
    ReadPart(json, *part);
    return true;
  }
  for (const OptionList& list : options.Lists()) {
    if (key != list.name) continue;
    ReadList(json, where, list);
    return true;
  }
  return false;
}

// Options that are absent from the file were added after it was written. They keep their defaults.
void ReadOptions(const Json& json, const std::string& where, PartOptions& options) {
  Check(json.is_object(), where, "is not an object");
  std::vector<Option> fields = options.Fields();
  for (const auto& [key, value] : json.items()) {
    if (ReadInside(key, value, where, options)) continue;
    const auto field = std::ranges::find(fields, key, &Option::name);
    Check(
        field != fields.end(), where,
        "has '" + key +
            "', which this program does not know. If a newer version wrote it, use that version.");
    Check(value.is_primitive() && !value.is_null() && field->Set(ValueOf(value)), where,
          Concat("has '", key, "', which is not of type ", TypeName(*field)));
  }
}

// {"gla": {"num_heads": 4}}
void ReadPart(const Json& json, PartConfig& part) {
  const std::string kind = part.kind().name;
  Check(json.is_object() && json.size() == 1, kind,
        "is not an object with exactly one member, the variant");
  const std::string name = json.begin().key();
  const std::vector<std::string> names = NamesOf(part.kind());
  Check(std::ranges::count(names, name) > 0, kind,
        Concat("is '", name, "'; known: ", Join(names, ", "), DidYouMean(name, names)));
  part = PartConfig(part.kind(), name);
  ReadOptions(json.begin().value(), kind + " " + name, part.options());
}

// The members of one JSON object. CheckNothingElse() verifies that every member has been read.
class Members {
 public:
  Members(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    Check(json.is_object(), where_, "is not an object");
  }
  const Json* Find(const std::string& key) {
    const auto found = json_.find(key);
    if (found == json_.end()) return nullptr;
    ++num_read_;
    return &*found;
  }
  const Json& Need(const std::string& key) {
    const Json* member = Find(key);
    Check(member != nullptr, where_, "lacks '" + key + "'");
    return *member;
  }
  template <typename Number>
  void Read(const std::string& key, Number* value) {
    const Json& member = Need(key);
    constexpr bool kInteger = std::is_integral_v<Number>;
    Check(kInteger ? member.is_number_integer() : member.is_number(), where_,
          Concat("has '", key, "', which is not ", kInteger ? "an integer" : "a number"));
    *value = member.get<Number>();
  }
  // Reads a string that the first checkpoints do not have. If it is absent, `value` is unchanged.
  void ReadWord(const std::string& key, std::string* value) {
    const Json* member = Find(key);
    if (member == nullptr) return;
    Check(member->is_string(), where_, Concat("has '", key, "', which is not a string"));
    *value = member->get<std::string>();
  }
  void CheckNothingElse() const {
    Check(json_.size() == num_read_, where_,
          Concat("has ", json_.size(), " keys, of which this program knows only ", num_read_,
                 ". If a newer version wrote it, use that version."));
  }

 private:
  const Json& json_;
  std::string where_;
  size_t num_read_ = 0;
};

Json ToJson(const LayerGroup& group) {
  Json json = group.every > 0 ? Json{{"every", group.every}, {"first", group.first}}
                              : Json{{"layers", group.layers}};
  LayerGroup copy = group;
  if (copy.mixer) json["mixer"] = ToJson(*copy.mixer);
  if (copy.channel_mixer) json["channel_mixer"] = ToJson(*copy.channel_mixer);
  if (copy.block) json["block"] = ToJson(*copy.block);
  return json;
}

LayerGroup ReadGroup(const Json& json) {
  Members members(json, "hybrid group");
  LayerGroup group;
  if (members.Find("every") != nullptr) {
    group.every = json.at("every").is_number_integer() ? json.at("every").get<int64_t>() : 0;
    members.Read("first", &group.first);
  } else {
    const Json& layers = members.Need("layers");
    Check(layers.is_array(), "hybrid group", "has 'layers', which is not an array");
    for (const Json& layer : layers) {
      Check(layer.is_number_integer(), "hybrid group", "has a layer that is not an integer");
      group.layers.push_back(layer.get<int64_t>());
    }
  }
  if (const Json* mixer = members.Find("mixer")) ReadPart(*mixer, group.mixer.emplace());
  if (const Json* mixer = members.Find("channel_mixer"))
    ReadPart(*mixer, group.channel_mixer.emplace());
  if (const Json* block = members.Find("block")) ReadPart(*block, group.block.emplace());
  members.CheckNothingElse();
  return group;
}

}  // namespace

nlohmann::json ToJson(const OptionValue& value) {
  const double* number = std::get_if<double>(&value);
  if (number != nullptr && !std::isfinite(*number)) return Text(value);
  return std::visit([](const auto& plain) { return Json(plain); }, value);
}

std::string ToJson(const ModelConfig& config) {
  Json json = {{"vocab_size", config.vocab_size},
               {"model_dim", config.model_dim},
               {"num_layers", config.num_layers},
               {"dropout", config.dropout},
               {"initializer_range", config.initializer_range},
               {"initializer", config.initializer}};
  ModelConfig copy = config;
  VisitParts(
      copy, {.group = [&](const char* name, PartOptions& options) { json[name] = ToJson(options); },
             .part = [&](PartConfig& part) { json[part.kind().name] = ToJson(part); }});
  if (copy.final_norm) json["final_norm"] = ToJson(*copy.final_norm);
  for (const LayerGroup& group : config.hybrid) json["hybrid"].push_back(ToJson(group));
  return json.dump(2);
}

ModelConfig ModelConfigFromJson(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, !json.is_discarded(),
              "model configuration: not JSON: '", text.substr(0, 60), "'");
  Members members(json, "the text");
  ModelConfig config;
  members.Read("vocab_size", &config.vocab_size);
  members.Read("model_dim", &config.model_dim);
  members.Read("num_layers", &config.num_layers);
  members.Read("dropout", &config.dropout);
  members.Read("initializer_range", &config.initializer_range);
  members.ReadWord("initializer", &config.initializer);
  VisitParts(config, {.group =
                          [&](const char* name, PartOptions& options) {
                            if (const Json* found = members.Find(name))
                              ReadOptions(*found, name, options);
                          },
                      .part =
                          [&](PartConfig& part) {
                            if (const Json* found = members.Find(part.kind().name))
                              ReadPart(*found, part);
                          }});
  if (const Json* norm = members.Find("final_norm")) ReadPart(*norm, config.final_norm.emplace());
  if (const Json* hybrid = members.Find("hybrid")) {
    Check(hybrid->is_array(), "the text", "has 'hybrid', which is not an array");
    for (const Json& group : *hybrid) config.hybrid.push_back(ReadGroup(group));
  }
  members.CheckNothingElse();
  const std::vector<std::string> problems = Problems(config);
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, problems.empty(),
              "model configuration: ", problems.empty() ? "" : problems.front());
  return config;
}

}  // namespace halflife::model
