#include "ckpt/agreement.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "core/concat.h"
#include "core/error.h"
#include "core/human.h"
#include "core/nearest.h"

namespace halflife::ckpt {
namespace {

using Fields = std::map<std::string, std::string>;
using Json = nlohmann::json;

// Fields have the same names as in a recipe.
constexpr char kModelPrefix[] = "model.";
constexpr char kMixer[] = "model.mixer";  // the model's family

// Returns true if --allow-change NAME covers `field`. A field's name covers that field. The name of
// a part of the model also covers all fields of the part: "model.mixer" covers
// "model.mixer.gla.num_heads".
bool Allows(const std::string& name, const std::string& field) {
  return field == name || (name.starts_with(kModelPrefix) && field.starts_with(name + "."));
}

void Flatten(const Json& value, const std::string& prefix, Fields* fields) {
  for (const auto& [key, child] : value.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (child.is_object() && !child.empty()) {
      Flatten(child, name, fields);
    } else {
      (*fields)[name] = child.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
  }
}

std::string ValueOf(const Fields& fields, const std::string& key) {
  const auto found = fields.find(key);
  return found == fields.end() ? "(absent)" : found->second;
}

std::string AliasText(std::vector<std::string> aliases) {
  std::sort(aliases.begin(), aliases.end());
  return aliases.empty() ? "nothing" : Join(aliases, ", ");
}

constexpr char kTensorLabel[] = "tensor ", kArrayLabel[] = "array ";
constexpr char kOptimizerState[] = "optimizer state";

class Comparison {
 public:
  explicit Comparison(const Expectation& expectation) : expectation_(expectation) {}

  void Value(const std::string& name, const std::string& stored, const std::string& wanted) {
    const auto allows = [&](const std::string& allowed) { return Allows(allowed, name); };
    if (expectation_.may_differ && expectation_.may_differ(name)) return;
    if (std::ranges::none_of(expectation_.allow_change, allows)) Structure(name, stored, wanted);
  }

  void Structure(const std::string& name, const std::string& stored, const std::string& wanted) {
    if (stored == wanted) return;
    lines_.push_back(
        Concat(name, ": checkpoint ", ReadableValue(stored), ", this run ", ReadableValue(wanted)));
  }

  void AllFields(const Fields& stored, const Fields& wanted, const std::string& prefix) {
    std::set<std::string> keys;
    for (const auto& [key, value] : stored) keys.insert(key);
    for (const auto& [key, value] : wanted) keys.insert(key);
    for (const std::string& key : keys)
      Value(prefix + key, ValueOf(stored, key), ValueOf(wanted, key));
  }

  // Compares the arrays that the run needs with the stored ones. A step without updates is always
  // accepted, because it has no optimizer state, or only zeros.
  void Arrays(const Manifest& manifest, const ArenaView& arena) {
    std::vector<std::string> stored = manifest.array_names(), wanted;
    for (const ArenaArray& array : arena.arrays) {
      wanted.push_back(array.name);
      if (const ArrayEntry* const entry = manifest.FindArray(array.name))
        Structure(Concat(kArrayLabel, array.name, " dtype"), Name(entry->dtype), "F32");
    }
    if (!arena.has_optimizer_state() || manifest.state.num_updates == 0) return;
    Structure(kOptimizerState, OptimizerArrays(stored), OptimizerArrays(wanted));
    for (const TensorEntry& tensor : manifest.tensors)
      for (const std::string& array : wanted)
        if (manifest.FindArray(array) != nullptr)
          Structure(Concat(kTensorLabel, tensor.name, " ", array),
                    tensor.has(array) ? "present" : "none", "present");
  }

  void Tensors(const Manifest& manifest, const ArenaView& arena) {
    std::map<std::string, const dist::ParamSpec*> wanted;
    for (const dist::ParamSpec& spec : arena.layout->specs()) wanted[spec.name] = &spec;
    for (const TensorEntry& tensor : manifest.tensors) {
      const auto spec = wanted.find(tensor.name);
      if (spec == wanted.end()) {
        lines_.push_back(Concat(kTensorLabel, tensor.name, ": only in the checkpoint"));
        continue;
      }
      Tensor(tensor, *spec->second);
      wanted.erase(spec);
    }
    for (const auto& [name, spec] : wanted) {
      lines_.push_back(Concat(kTensorLabel, name, ": only in this run's model"));
    }
  }

  std::vector<std::string> lines() && { return std::move(lines_); }

 private:
  void Tensor(const TensorEntry& stored, const dist::ParamSpec& spec) {
    const std::string label = kTensorLabel + stored.name;
    // No --allow-change here: a tensor of another shape cannot be loaded.
    Structure(label, ShapeText(stored.shape), ShapeText(spec.shape));
    Structure(label + " tied to", AliasText(stored.aliases), AliasText(spec.aliases));
  }

  static std::string OptimizerArrays(std::vector<std::string> arrays) {
    std::erase(arrays, kMainArray);
    return arrays.empty() ? "none" : Join(arrays, ", ");
  }

  const Expectation& expectation_;
  std::vector<std::string> lines_;
};

// Returns the checkpoint's values in the form of an Expectation. Values from older versions are
// converted to today's form.
Expectation StoredIn(const Manifest& manifest, const Expectation& expectation) {
  Expectation stored;
  stored.model_config_json = manifest.state.model_config_json;
  if (expectation.canonical_model_config && !stored.model_config_json.empty())
    stored.model_config_json = expectation.canonical_model_config(stored.model_config_json);
  stored.trajectory = manifest.state.trajectory;
  stored.trajectory.insert(expectation.trajectory_defaults.begin(),
                           expectation.trajectory_defaults.end());
  return stored;
}

}  // namespace

std::string ReadableValue(const std::string& stored) {
  double value = 0;
  const char* const end = stored.data() + stored.size();
  const auto [rest, error] = std::from_chars(stored.data(), end, value);
  if (stored.find('.') == std::string::npos || error != std::errc() || rest != end) return stored;
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  return stored == digits ? ShortestText(value) : stored;
}

Fields FlattenJson(const std::string& text) {
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return text.empty() ? Fields{} : Fields{{"", text}};
  Fields fields;
  Flatten(value, "", &fields);
  return fields;
}

std::vector<std::string> FindDifferences(const Manifest& manifest, const Expectation& expectation,
                                         const ArenaView& arena) {
  Comparison comparison(expectation);
  comparison.Value(kMixer, manifest.state.model_family, expectation.model_family);
  const Expectation stored = StoredIn(manifest, expectation);
  comparison.AllFields(FlattenJson(stored.model_config_json),
                       FlattenJson(expectation.model_config_json), kModelPrefix);
  // An imported step 0 was not written by a run, so only its model can disagree.
  if (!manifest.state.trajectory.empty() || manifest.state.step > 0)
    comparison.AllFields(stored.trajectory, expectation.trajectory, "");
  comparison.Arrays(manifest, arena);
  comparison.Tensors(manifest, arena);
  return std::move(comparison).lines();
}

void CheckAllowedNames(const Expectation& expectation, const Manifest* manifest) {
  std::vector<std::string> known = ComparedFields(expectation);
  if (manifest != nullptr) {
    for (const std::string& name : ComparedFields(StoredIn(*manifest, expectation)))
      if (std::ranges::count(known, name) == 0) known.push_back(name);
  }
  for (const std::string& name : expectation.allow_change) {
    const auto allows = [&](const std::string& field) { return Allows(name, field); };
    HL_CHECK_AS(ExitCode::kUsage, std::ranges::any_of(known, allows), "--allow-change '", name,
                "' is no field that must agree with the checkpoint", DidYouMean(name, known),
                "\nUse one of ", Join(known, ", "));
  }
}

std::vector<std::string> ComparedFields(const Expectation& expectation) {
  std::vector<std::string> names = {kMixer};
  for (const auto& [key, value] : FlattenJson(expectation.model_config_json))
    names.push_back(kModelPrefix + key);
  for (const auto& [key, value] : expectation.trajectory) names.push_back(key);
  return names;
}

void CheckAgreement(const Manifest& manifest, const std::string& step_name,
                    const Expectation& expectation, const ArenaView& arena) {
  CheckAllowedNames(expectation, &manifest);
  const uint64_t step = manifest.state.step;
  HL_CHECK_AS(ExitCode::kUsage, step <= expectation.max_step, "the checkpoint is at step ", step,
              ", past train.steps ", expectation.max_step, "; set train.steps to ", step,
              " or more");
  const std::vector<std::string> differences = FindDifferences(manifest, expectation, arena);
  if (differences.empty()) return;
  std::string text;
  for (const std::string& line : differences) text += "\n  " + line;
  const auto any = [&](const char* label) {
    return std::ranges::any_of(differences,
                               [&](const std::string& line) { return line.starts_with(label); });
  };
  const char* const advice =
      any(kTensorLabel) || any(kArrayLabel)
          ? "\nTensors that differ cannot be loaded: --allow-change applies to fields only. Resume "
            "with the checkpoint's model, or start another run with another --run"
      : any(kOptimizerState)
          ? "\nAn optimizer cannot continue from the state of another (optimizer.ema_decay adds an "
            "average of the weights to it), and --allow-change applies to fields only. Resume with "
            "the checkpoint's optimizer, or start another run from "
            "these weights with another --run and --init-from"
          : "\nResume with the checkpoint's values, name the fields you mean to change with "
            "--allow-change, or start another run";
  HL_FAIL(ExitCode::kUsage, step_name, " does not fit this run, ", differences.size(),
          differences.size() == 1 ? " difference:" : " differences:", text, advice);
}

}  // namespace halflife::ckpt
