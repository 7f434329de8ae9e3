#include "interop/layout.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "interop/layouts/layouts.h"

namespace halflife::interop {
namespace {

constexpr size_t kShownBytes = 60;  // Bytes of a value that a message shows.

std::string Shown(const nlohmann::json& value) {
  const std::string text =
      value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, kShownBytes);
  return text;
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& json, std::string where)
    : json_(json), where_(std::move(where)) {
  HL_CHECK_AS(ExitCode::kData, json_.is_object(), where_, ": not a JSON object");
}

const nlohmann::json* ConfigReader::Find(const std::string& key) {
  known_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::Has(const std::string& key) { return Find(key) != nullptr; }

const nlohmann::json* ConfigReader::Member(const std::string& key) { return Find(key); }

int64_t ConfigReader::Int(const std::string& key, int64_t absent, int64_t min) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  constexpr int64_t kMax = int64_t{1} << 30;  // The product of two such numbers fits into 64 bits.
  const bool valid = value->is_number_integer() &&
                     !(value->is_number_unsigned() && value->get<uint64_t>() > kMax) &&
                     value->get<int64_t>() >= min && value->get<int64_t>() <= kMax;
  Require(valid, key, " is ", Shown(*value), ". Only integers from ", min, " to ", kMax,
          " are supported.");
  return valid ? value->get<int64_t>() : absent;
}

double ConfigReader::Double(const std::string& key, double absent) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  Require(value->is_number(), key, " is ", Shown(*value), ". Only numbers are supported.");
  return value->is_number() ? value->get<double>() : absent;
}

bool ConfigReader::Bool(const std::string& key, bool absent) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  Require(value->is_boolean(), key, " is ", Shown(*value), ". Only true and false are supported.");
  return value->is_boolean() ? value->get<bool>() : absent;
}

std::string ConfigReader::String(const std::string& key, const std::string& absent) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  Require(value->is_string(), key, " is ", Shown(*value), ". Only strings are supported.");
  return value->is_string() ? value->get<std::string>() : absent;
}

void ConfigReader::Ignore(std::initializer_list<const char*> keys) {
  known_.insert(keys.begin(), keys.end());
}

void ConfigReader::IgnoreDefaults(const nlohmann::json& defaults) {
  for (const auto& [key, value] : defaults.items()) {
    const auto found = json_.find(key);
    if (found != json_.end() && (found->is_null() || *found == value)) known_.insert(key);
  }
}

void ConfigReader::Check() const {
  std::string lines;
  for (const std::string& problem : problems_) lines += "\n  " + problem;
  HL_CHECK_AS(ExitCode::kData, problems_.empty(), where_,
              " contains settings that halflife does not support:", lines);
  std::string unknown;
  for (const auto& [key, value] : json_.items()) {
    if (!known_.contains(key)) unknown += (unknown.empty() ? "" : ", ") + key;
  }
  if (!unknown.empty()) HL_WARN("interop", where_, ": ignoring unknown keys: ", unknown);
}

Placement Layout::PlacementOf(const std::string&, ConfigReader*) const { return {}; }
std::string Layout::OptionalPrefix() const { return {}; }
bool Layout::IsBuffer(const std::string&, ConfigReader&) const { return false; }
std::vector<float> Layout::BufferValues(const std::string&, ConfigReader&) const { return {}; }
bool Layout::IsUnused(const std::string&) const { return false; }
std::string Layout::CopyOf(const std::string&) const { return {}; }
std::vector<dist::ParamSpec> Layout::ZeroTensors(const model::ModelConfig&) const { return {}; }

const std::vector<const Layout*>& Layouts() {
  static const std::vector<std::unique_ptr<Layout>> owned = [] {
    std::vector<std::unique_ptr<Layout>> made;
#define HL_LAYOUT(Make, model_type, exports) made.push_back(Make());
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT
    return made;
  }();
  static const std::vector<const Layout*> layouts = [] {
    std::vector<const Layout*> pointers;
    for (const auto& layout : owned) pointers.push_back(layout.get());
    return pointers;
  }();
  return layouts;
}

const Layout& LayoutOf(const std::string& model_type, const std::string& where) {
  for (const Layout* layout : Layouts()) {
    if (layout->model_type() == model_type) return *layout;
  }
  const auto name = [](const Layout* layout) { return layout->model_type(); };
  HL_FAIL(ExitCode::kData, where, ": model_type is '", model_type,
          "'; known: ", Join(Layouts(), ", ", name));
}

const Layout& ChooseLayout(const model::ModelConfig& given, const std::string& model_type) {
  const model::ModelConfig config = model::Resolved(given);
  const bool any = model_type.empty() || model_type == "auto";
  std::string obstacles;
  for (const Layout* layout : Layouts()) {
    if (any ? layout->mixer() != config.mixer.name() : layout->model_type() != model_type) continue;
    if (!layout->exports()) {
      obstacles += "\n  " + layout->model_type() + " can only be imported";
      continue;
    }
    if (layout->mixer() != config.mixer.name()) {
      obstacles += Concat("\n  ", model_type, " is for the mixer ", layout->mixer(),
                          ", but the model has ", config.mixer.name());
      continue;
    }
    const std::vector<std::string> lines = layout->Obstacles(config);
    if (lines.empty()) return *layout;
    for (const std::string& line : lines) obstacles += "\n  " + layout->model_type() + ": " + line;
  }
  const auto name = [](const Layout* layout) {
    return layout->model_type() + " (" + layout->mixer() + ")";
  };
  std::vector<const Layout*> exported;
  std::ranges::copy_if(Layouts(), std::back_inserter(exported), &Layout::exports);
  HL_FAIL(ExitCode::kUsage, "no Hugging Face class expresses this model:",
          obstacles.empty() ? Concat("\n  there is none for ",
                                     any ? "the mixer " + config.mixer.name() : model_type)
                            : obstacles,
          "\nknown: ", Join(exported, ", ", name));
}

}  // namespace halflife::interop
