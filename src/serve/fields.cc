#include "serve/fields.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "core/concat.h"
#include "core/json_text.h"
#include "core/nearest.h"

namespace halflife::serve {

std::string ApiError::Body() const {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  return JsonText({{"error",
                    {{"message", what()},
                     {"type", type()},
                     {"param", text_or_null(param_)},
                     {"code", text_or_null(code_)}}}}) +
         "\n";
}

struct Fields::Json {
  nlohmann::json object;
};

Fields::~Fields() = default;
Fields::Fields(Fields&&) noexcept = default;

Fields::Fields(const std::string& body) : json_(std::make_unique<Json>()) {
  const int nesting = JsonNesting(body);
  if (nesting > kMaxJsonNesting)
    throw ApiError(400, Concat("The body is nested ", nesting, " deep. Use at most ",
                               kMaxJsonNesting, " brackets within each other."));
  json_->object = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json_->object.is_discarded())
    throw ApiError(400, body.empty() ? "The body is empty. Send a JSON object."
                                     : "The body is not valid JSON in UTF-8. Send a JSON object.");
  if (!json_->object.is_object())
    throw ApiError(400, Concat("The body is ", Shown(json_->object), ". Send a JSON object."));
}

Fields::Fields(const nlohmann::json& object, std::string path)
    : json_(std::make_unique<Json>(Json{object})), path_(std::move(path)) {
  if (!object.is_object())
    throw ApiError(400, Concat(path_, " is ", Shown(object), ". Send a JSON object."), path_);
}

std::string Shown(const nlohmann::json& value) {
  constexpr size_t kMax = 40;
  if (value.is_array()) return Concat("a list of ", value.size());
  if (value.is_object()) return "an object";
  std::string text = JsonText(nlohmann::ordered_json(value));
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

std::string Fields::PathOf(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

void Fields::Refuse(const std::string& name, const std::string& problem) const {
  throw ApiError(400, Concat(PathOf(name), ": ", problem), PathOf(name));
}

const nlohmann::json* Fields::Find(const std::string& name) {
  known_.push_back(name);
  const auto found = json_->object.find(name);
  return found == json_->object.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& Fields::Require(const std::string& name, const std::string& what) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) Refuse(name, Concat("is missing. Send ", what, "."));
  return *value;
}

std::optional<std::string> Fields::String(const std::string& name) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Refuse(name, Concat(Shown(*value), " is not a string."));
  return value->get<std::string>();
}

std::optional<bool> Fields::Boolean(const std::string& name) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Refuse(name, Concat(Shown(*value), " is not true or false."));
  return value->get<bool>();
}

std::optional<int64_t> Fields::Integer(const std::string& name, int64_t least, int64_t most) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::string fix = Concat(". Use a whole number from ", least, " to ", most, ".");
  if (!value->is_number_integer())
    Refuse(name, Concat(Shown(*value), " is not a whole number", fix));
  const bool too_large = value->is_number_unsigned() &&
                         value->get<uint64_t>() > static_cast<uint64_t>(std::max<int64_t>(most, 0));
  if (too_large || value->get<int64_t>() < least || value->get<int64_t>() > most)
    Refuse(name, Concat(Shown(*value), " is out of range", fix));
  return value->get<int64_t>();
}

std::optional<double> Fields::Number(const std::string& name, double least, double most) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::string fix = Concat(". Use a number from ", least, " to ", most, ".");
  if (!value->is_number()) Refuse(name, Concat(Shown(*value), " is not a number", fix));
  const auto number = value->get<double>();
  if (!(number >= least && number <= most))
    Refuse(name, Concat(Shown(*value), " is out of range", fix));
  return number;
}

std::vector<std::string> Fields::Strings(const std::string& name, size_t most) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return {};
  nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  if (list.size() > most)
    Refuse(name, Concat("has ", list.size(), " entries. Use at most ", most, "."));
  std::vector<std::string> strings;
  for (const nlohmann::json& entry : list) {
    if (!entry.is_string())
      Refuse(name, Concat(Shown(entry), " is not a string. Use a string or a list of strings."));
    if (entry.get<std::string>().empty()) Refuse(name, "an entry is empty. Leave it out.");
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

void Fields::Only(const std::string& name, const nlohmann::json& value) {
  const nlohmann::json* given = Find(name);
  if (given == nullptr || *given == value) return;
  Refuse(name, Concat(Shown(*given), " is not supported. Leave it out",
                      value.is_null() ? std::string(".") : Concat(" or use ", value.dump(), ".")));
}

void Fields::Ignore(const std::vector<std::string>& names) {
  known_.insert(known_.end(), names.begin(), names.end());
}

void Fields::RejectOthers() const {
  for (const auto& [name, value] : json_->object.items()) {
    if (value.is_null() || std::ranges::count(known_, name) > 0) continue;
    const std::string shown = name.substr(0, 60);
    std::string near = DidYouMean(shown, known_);
    if (near.empty()) near = ". Leave it out";
    throw ApiError(
        400, Concat("Unknown field '", PathOf(shown), "'", near, near.ends_with('?') ? "" : "."),
        PathOf(shown));
  }
}

}  // namespace halflife::serve
