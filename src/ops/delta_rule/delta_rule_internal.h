// Declarations that the files of the delta rule share. Internal to this folder.
//
// delta_rule.cc checks a call and selects its implementation: the kernels on the CPU
// (delta_rule_kernels.cc), or LibTorch operations on other devices and for sizes that the kernels
// do not support (delta_rule_composed.cc). One token is delta_rule_step.cc, and rows that are split
// across ranks are delta_rule_segments.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/delta_rule/delta_rule.h"

namespace halflife::ops {

// Throws Error if the inputs do not fit each other. Does not check the segment.
void CheckDeltaRule(const DeltaRuleInputs& inputs);

// How the tokens of sequences change their states: S_out = transition S_in + state.
struct DeltaRuleSummary {
  at::Tensor transition;  // [sequences, HV, K, K]; zero if a document starts in the sequence
  at::Tensor state;       // [sequences, HV, K, V]: the final state if the initial one is zero
};

// The number of initial and final states.
int64_t NumDeltaSequences(const DeltaRuleInputs& inputs);

// The delta rule over rows that are split across ranks: the segments exchange their states.
//
// Requires inputs.segment. Returns only `out`, because only the last rank has the final state.
DeltaRuleOutput DeltaRuleOverSegments(const DeltaRuleInputs& inputs, double scale);

}  // namespace halflife::ops
