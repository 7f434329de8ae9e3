// The settings of an optimizer for each parameter: optimizer.group of the recipe, applied to the
// model's parameters by name.
//
//   const std::vector<ParameterRule> rules = RulesOf(config.optimizer, layout.specs());
//   if (!rules[param].frozen) Update(param, rules[param].lr_scale * lr);
#pragma once

#include <vector>

#include "dist/parameter_layout.h"
#include "train/config/run_config.h"

namespace halflife::train {

struct ParameterRule {
  float weight_decay = 0;
  float lr_scale = 1;
  bool frozen = false;  // also with a factor of 0
};

// Returns the rule of each parameter. The first group whose expression is found in a name counts.
// Without a group, optimizer.weight_decay applies to parameters that decay. Throws Error kUsage if
// a group has no parameter; it names the nearest ones.
std::vector<ParameterRule> RulesOf(const OptimizerConfig& config,
                                   const std::vector<dist::ParamSpec>& specs);

// Returns whether each parameter is frozen. Throws Error kUsage if all are.
std::vector<bool> FrozenParameters(const OptimizerConfig& config,
                                   const std::vector<dist::ParamSpec>& specs);

}  // namespace halflife::train
