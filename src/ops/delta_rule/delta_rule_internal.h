// Declarations that the files of the delta rule share. Internal to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/delta_rule/delta_rule.h"

namespace halflife::ops {

// Throws Error if the inputs do not fit each other. Does not check the segment.
void CheckDeltaRule(const DeltaRuleInputs& inputs);

// The number of initial and final states.
int64_t NumDeltaSequences(const DeltaRuleInputs& inputs);

// The delta rule over rows that are split across ranks: the segments exchange their states.
//
// Requires inputs.segment. Returns only `out`, because only the last rank has the final state.
DeltaRuleOutput DeltaRuleOverSegments(const DeltaRuleInputs& inputs, double scale);

}  // namespace halflife::ops
