#include "train/loop/warm_start.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "ckpt/merged_weights.h"
#include "ckpt/step_writer.h"
#include "core/error.h"
#include "core/files.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;

bool MatchesAny(const std::string& name, const std::vector<std::string>& globs) {
  return std::ranges::any_of(globs, [&](const std::string& glob) {
    return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
  });
}

std::regex Compile(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    HL_FAIL(ExitCode::kUsage, "--init-map: '", pattern,
            "' is not a regular expression: ", error.what(), ". Correct it.");
  }
}

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Maps renamed names to weights of the source.
std::map<std::string, const ckpt::WeightInfo*> Rename(const ckpt::WeightSource& source,
                                                      const WarmStartRules& rules) {
  std::vector<std::pair<std::regex, std::string>> compiled;
  for (const auto& [pattern, replacement] : rules.renames)
    compiled.emplace_back(Compile(pattern), replacement);
  std::map<std::string, const ckpt::WeightInfo*> renamed;
  for (const ckpt::WeightInfo& weight : source.weights()) {
    std::string name = weight.name;
    for (const auto& [pattern, replacement] : compiled) {
      if (!std::regex_match(name, pattern)) continue;
      name = std::regex_replace(name, pattern, replacement);
      break;
    }
    const auto [place, added] = renamed.emplace(name, &weight);
    HL_CHECK_AS(ExitCode::kUsage, added, "--init-map makes both ", place->second->name, " and ",
                weight.name, " to ", name);
  }
  return renamed;
}

bool GrowsRows(const std::string& name, const Shape& stored, const Shape& wanted) {
  return (name == "embeddings.weight" || name == "lm_head.weight") && stored.size() == 2 &&
         wanted.size() == 2 && stored[1] == wanted[1] && stored[0] < wanted[0] && stored[0] > 0;
}

class Plan {
 public:
  struct Item {
    int param;
    const ckpt::WeightInfo* weight;
  };

  Plan(const ckpt::WeightSource& source, const WarmStartRules& rules,
       const std::vector<dist::ParamSpec>& specs) {
    auto weights = Rename(source, rules);
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      const auto found = weights.find(specs[i].name);
      if (found == weights.end()) {
        Missing(specs[i], rules);
        continue;
      }
      CheckShape(*found->second, specs[i], rules);
      items.push_back({i, found->second});
      weights.erase(found);
    }
    for (const auto& [name, weight] : weights) {
      ++num_unused;
      if (!MatchesAny(name, rules.allow_unexpected))
        lines_ += Concat("\n  unexpected: ", name, " ", ckpt::ShapeText(weight->shape));
    }
    HL_CHECK_AS(
        ExitCode::kUsage, lines_.empty(), source.where(), " does not fit this model:", lines_,
        "\nUse --init-map FILE to rename tensors, --init-allow-missing GLOB to keep initial "
        "values, --init-allow-unexpected GLOB to ignore tensors, --init-new-rows to grow a "
        "vocabulary.");
  }

  std::vector<Item> items;
  int num_kept = 0, num_unused = 0;

 private:
  void Missing(const dist::ParamSpec& spec, const WarmStartRules& rules) {
    ++num_kept;
    if (!MatchesAny(spec.name, rules.allow_missing))
      lines_ += Concat("\n  missing: ", spec.name, " ", ckpt::ShapeText(spec.shape));
  }
  void CheckShape(const ckpt::WeightInfo& weight, const dist::ParamSpec& spec,
                  const WarmStartRules& rules) {
    if (weight.shape == spec.shape) return;
    if (rules.new_rows != RowGrowth::kRefuse && GrowsRows(spec.name, weight.shape, spec.shape))
      return;
    lines_ += Concat("\n  ", spec.name, ": file ", ckpt::ShapeText(weight.shape), ", model ",
                     ckpt::ShapeText(spec.shape));
  }
  std::string lines_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> ReadRenames(const std::filesystem::path& file) {
  std::istringstream text(ReadFile(file, ExitCode::kUsage));
  std::vector<std::pair<std::string, std::string>> rules;
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    line = Trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const size_t arrow = line.find("->");
    HL_CHECK_AS(ExitCode::kUsage, arrow != std::string::npos, file.string(), ":", number, ": '",
                line, "' is not `pattern -> replacement`");
    rules.emplace_back(Trimmed(line.substr(0, arrow)), Trimmed(line.substr(arrow + 2)));
    Compile(rules.back().first);
  }
  return rules;
}

StartValues::StartValues(const ckpt::WeightSource& source, const WarmStartRules& rules,
                         std::vector<dist::ParamSpec> specs, Initial initial)
    : source_(source),
      new_rows_(rules.new_rows),
      specs_(std::move(specs)),
      initial_(std::move(initial)),
      weights_(specs_.size(), nullptr) {
  const Plan plan(source, rules, specs_);
  report_ = {.num_kept = plan.num_kept, .num_unused = plan.num_unused};
  for (const auto& [param, weight] : plan.items) {
    weights_[param] = weight;
    ++report_.num_loaded;
    report_.num_elements += weight->count();
  }
}

at::Tensor StartValues::Of(int param) const {
  const ckpt::WeightInfo* const weight = weights_[param];
  if (weight == nullptr) return initial_(param);
  at::Tensor values = at::empty(weight->shape, at::kFloat);
  source_.ReadRange(weight->name, 0, weight->count(), values.mutable_data_ptr<float>());
  if (values.sizes() == specs_[param].shape) return values;
  const int64_t rows = values.size(0);
  const at::Tensor grown = initial_(param);
  grown.narrow(0, 0, rows).copy_(values);
  if (new_rows_ == RowGrowth::kMean)
    grown.narrow(0, rows, grown.size(0) - rows).copy_(values.mean(0, /*keepdim=*/true));
  return grown;
}

WarmStartReport WarmStart(const ckpt::WeightSource& source, const WarmStartRules& rules,
                          ParameterArena& arena) {
  const at::NoGradGuard no_grad;
  const StartValues values(source, rules, arena.layout().specs(),
                           [&](int param) { return arena.InitialWeights(param); });
  StreamHash hash;
  for (int param = 0; param < std::ssize(arena.layout().specs()); ++param) {
    if (!values.has(param)) continue;
    const at::Tensor loaded = values.Of(param).contiguous();
    hash.Update(loaded.const_data_ptr(), loaded.nbytes());
    arena.SetWeights(param, loaded);
  }
  WarmStartReport report = values.report();
  report.hash = hash.Digest();
  return report;
}

void WriteLoraBase(const fs::path& run, const std::vector<dist::ParamSpec>& specs,
                   const StartValues& values, const ckpt::StepState& state) {
  ckpt::StepState of_base;
  of_base.run_id = state.run_id;
  of_base.run_config_text = state.run_config_text;
  of_base.model_family = state.model_family;
  of_base.model_config_json = state.model_config_json;
  of_base.versions = state.versions;
  std::error_code ignored;
  fs::remove_all(run / ckpt::kLoraBaseFolder, ignored);  // of a start that failed
  int current = -1;                                      // the parameter in `tensor`
  at::Tensor tensor;
  ckpt::WriteMainWeights(run / ckpt::kLoraBaseFolder, std::move(of_base), specs,
                         [&](const std::string& name, int64_t begin, int64_t end, float* out) {
                           const auto spec = std::ranges::find(specs, name, &dist::ParamSpec::name);
                           const int param = static_cast<int>(spec - specs.begin());
                           if (param != current) tensor = values.Of(param).contiguous();
                           current = param;
                           const float* const data = tensor.const_data_ptr<float>();
                           std::copy(data + begin, data + end, out);
                         });
}

namespace {

// Returns the id of the run whose base weights a folder has; empty: it has none. Damage to the base
// is no damage to the step, so it is not thrown as a DamageError.
std::string RunOfLoraBase(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / "manifest.pb", error)) return "";
  try {
    return ckpt::StepReader::Open(folder).state().run_id;
  } catch (const Error& damage) {
    HL_FAIL(ExitCode::kNoUsableCheckpoint, damage.message());
  }
}

}  // namespace

fs::path FindLoraBase(const fs::path& step, const fs::path& run, const std::string& run_id) {
  const fs::path run_of_step = ckpt::RunOfStep(step), from = run_of_step / ckpt::kLoraBaseFolder;
  if (RunOfLoraBase(run / ckpt::kLoraBaseFolder) == run_id) return run / ckpt::kLoraBaseFolder;
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, !run_of_step.empty(), step.string(),
              " has only the LoRA weights of a run. The base weights are in the run's folder ",
              ckpt::kLoraBaseFolder, "/, and this step is not in a run. Use the step within the ",
              "run's folder.");
  const std::string present = RunOfLoraBase(from);
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, !present.empty(), step.string(),
              " has only the LoRA weights of a run, and ", from.string(),
              " with its base weights is missing. Restore that folder.");
  HL_CHECK_AS(ExitCode::kNoUsableCheckpoint, present == run_id, from.string(),
              " has the base weights of another run. Restore the folder ", ckpt::kLoraBaseFolder,
              " of the run whose step is resumed.");
  return from;
}

void CopyLoraBase(const fs::path& step, const fs::path& run, const std::string& run_id) {
  const fs::path from = FindLoraBase(step, run, run_id), to = run / ckpt::kLoraBaseFolder;
  if (from == to) return;
  std::error_code error;
  if (const std::string present = RunOfLoraBase(to); !present.empty()) {
    fs::rename(to, fs::path(to) += "." + present, error);  // the base of superseded steps
    HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot rename ", to.string(), ": ",
                error.message(), ". Rename it yourself, and start the command again.");
  }
  const fs::path part = fs::path(to) += ".tmp";  // a copy that was interrupted is no base
  fs::remove_all(part, error);
  fs::copy(from, part, fs::copy_options::recursive, error);
  if (!error) fs::rename(part, to, error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot copy ", from.string(), " to ", to.string(),
              ": ", error.message(), ". Copy the folder yourself, and start the command again.");
}

}  // namespace halflife::train
