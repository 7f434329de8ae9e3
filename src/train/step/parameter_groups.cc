#include "train/step/parameter_groups.h"

#include <algorithm>
#include <limits>
#include <regex>
#include <sstream>
#include <string>

#include "core/error.h"
#include "core/nearest.h"

namespace halflife::train {
namespace {

// Returns the expression without its special characters.
std::string Literal(const std::string& match) {
  std::string text;
  for (const char c : match)
    if (std::string_view("\\^$*+?()[]{}|").find(c) == std::string_view::npos) text += c;
  return text;
}

// Returns the number of edits that map `text` to the nearest run of dotted parts of the name.
int Distance(const std::string& text, const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream stream(name);
  for (std::string part; std::getline(stream, part, '.');) parts.push_back(part);
  int least = std::numeric_limits<int>::max();
  for (size_t first = 0; first < parts.size(); ++first) {
    std::string run;
    for (size_t last = first; last < parts.size(); ++last) {
      run += (last > first ? "." : "") + parts[last];
      least = std::min(least, EditDistance(text, run));
    }
  }
  return least;
}

std::string NearestParameters(const std::string& match, const std::vector<dist::ParamSpec>& specs) {
  constexpr size_t kShown = 3;
  const std::string text = Literal(match);
  std::vector<std::string> names;
  for (const dist::ParamSpec& spec : specs) names.push_back(spec.name);
  std::ranges::stable_sort(names, {},
                           [&](const std::string& name) { return Distance(text, name); });
  names.resize(std::min(names.size(), kShown));
  return Join(names, ", ");
}

}  // namespace

std::vector<ParameterRule> RulesOf(const OptimizerConfig& config,
                                   const std::vector<dist::ParamSpec>& specs) {
  std::vector<std::regex> expressions;
  for (const ParameterGroup& group : config.groups) expressions.emplace_back(group.match);
  std::vector<int> found(expressions.size(), 0), taken(expressions.size(), 0);
  std::vector<ParameterRule> rules;
  for (const dist::ParamSpec& spec : specs) {
    const bool decays = config.decay_all || spec.weight_decay;
    ParameterRule& rule = rules.emplace_back(ParameterRule{
        .weight_decay = decays ? static_cast<float>(config.adamw.weight_decay) : 0.0f});
    bool first = true;
    for (size_t i = 0; i < expressions.size(); ++i) {
      if (!std::regex_search(spec.name, expressions[i])) continue;
      ++found[i];
      if (!std::exchange(first, false)) continue;
      ++taken[i];
      const ParameterGroup& group = config.groups[i];
      if (group.weight_decay) rule.weight_decay = static_cast<float>(*group.weight_decay);
      rule.lr_scale = static_cast<float>(group.lr_scale);
      rule.frozen = group.frozen || group.lr_scale == 0;
    }
  }
  for (size_t i = 0; i < expressions.size(); ++i) {
    const std::string& match = config.groups[i].match;
    HL_CHECK_AS(ExitCode::kUsage, found[i] > 0, "optimizer.group.", i, ".match: '", match,
                "' is found in no parameter's name. Use a part of a name; the nearest are ",
                NearestParameters(match, specs), ".");
    HL_CHECK_AS(ExitCode::kUsage, taken[i] > 0, "optimizer.group.", i,
                ".match: all parameters of '", match,
                "' belong to earlier groups. Put this group before them.");
  }
  return rules;
}

std::vector<bool> FrozenParameters(const OptimizerConfig& config,
                                   const std::vector<dist::ParamSpec>& specs) {
  std::vector<bool> frozen;
  for (const ParameterRule& rule : RulesOf(config, specs)) frozen.push_back(rule.frozen);
  HL_CHECK_AS(ExitCode::kUsage, std::ranges::count(frozen, false) > 0,
              "optimizer.group: all parameters are frozen. Train some: remove `frozen: true` or "
              "`lr_scale: 0` from a group.");
  return frozen;
}

}  // namespace halflife::train
