#include "model/mixer.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/nearest.h"
#include "core/shortest_text.h"
#include "model/mixers/mixers.h"

namespace halflife::model {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Mixer> (*make)(const MixerConfig&, const MixerContext&);
};

// The list is data, not self-registering statics, which a static library drops.
constexpr Entry kMixers[] = {
#define HL_MIXER(name, Make) {name, &Make},
#include "model/mixers/mixers.inc"
#undef HL_MIXER
};

template <typename Number>
bool Parse(const std::string& text, Number* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end;
}

}  // namespace

int64_t MixerState::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

std::vector<std::string> MixerNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kMixers) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Mixer> MakeMixer(const MixerConfig& config, const MixerContext& context) {
  for (const Entry& entry : kMixers)
    if (config.name == entry.name) return entry.make(config, context);
  HL_FAIL(ExitCode::kUsage, "unknown mixer '", config.name, "'; known: ", Join(MixerNames(), ", "),
          DidYouMean(config.name, MixerNames()));
}

std::map<std::string, std::string> ResolvedOptions(const MixerConfig& config, int64_t model_dim) {
  ParameterSet parameters;
  std::map<std::string, std::string> resolved;
  MakeMixer(config, {.model_dim = model_dim,
                     .prefix = "",
                     .parameters = &parameters,
                     .resolved_options = &resolved});
  return resolved;
}

void MixerOptions::Resolve(const std::string& key, std::string value) {
  if (resolved_ != nullptr) (*resolved_)[key] = std::move(value);
}

const std::string* MixerOptions::Find(const std::string& key) {
  if (!std::ranges::count(known_, key)) known_.push_back(key);
  const auto found = config_.options.find(key);
  return found == config_.options.end() ? nullptr : &found->second;
}

int64_t MixerOptions::Int(const std::string& key, int64_t default_value, int64_t min, int64_t max) {
  const std::string* text = Find(key);
  Resolve(key, text == nullptr ? Concat(default_value) : *text);
  if (text == nullptr) return default_value;
  int64_t value = 0;
  const bool valid = Parse(*text, &value) && value >= min && value <= max;
  Require(valid, "option ", key, " is '", *text, "'; an integer of at least ", min,
          value > max ? Concat(" and at most ", max) : "", " would work (default ", default_value,
          ")");
  return valid ? value : default_value;
}

double MixerOptions::Double(const std::string& key, double default_value) {
  const std::string* text = Find(key);
  Resolve(key, text == nullptr ? ShortestText(default_value) : *text);
  if (text == nullptr) return default_value;
  double value = 0;
  const bool valid = Parse(*text, &value);
  Require(valid, "option ", key, " is '", *text, "'; a number would work (default ", default_value,
          ")");
  return valid ? value : default_value;
}

bool MixerOptions::Bool(const std::string& key, bool default_value) {
  return Choice(key, default_value ? "true" : "false", {"true", "false"}) == "true";
}

std::string MixerOptions::Choice(const std::string& key, const std::string& default_value,
                                 const std::vector<std::string>& choices) {
  const std::string* text = Find(key);
  Resolve(key, text == nullptr ? default_value : *text);
  if (text == nullptr) return default_value;
  const bool valid = std::ranges::count(choices, *text) > 0;
  Require(valid, "option ", key, " is '", *text, "'; known: ", Join(choices, ", "), " (default ",
          default_value, ")");
  return valid ? *text : default_value;
}

void MixerOptions::Check() const {
  std::vector<std::string> problems = problems_;
  for (const auto& [key, value] : config_.options) {
    if (!std::ranges::count(known_, key))
      problems.push_back(Concat("mixer ", config_.name, ": unknown option '", key,
                                "'; known: ", Join(known_, ", "), DidYouMean(key, known_)));
  }
  HL_CHECK_AS(ExitCode::kUsage, problems.empty(), Join(problems, "\n"));
}

}  // namespace halflife::model
