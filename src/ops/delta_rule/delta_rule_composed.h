// The delta rule in chunks, as LibTorch operations that autograd differentiates.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/delta_rule/delta_rule.h"

namespace halflife::ops {

// Computes DeltaRule() for whole sequences. Expects checked inputs and ignores the segment.
//
// A NaN or an infinity in one document can reach other documents that share a chunk with it.
DeltaRuleOutput ComposedDeltaRule(const DeltaRuleInputs& inputs, double scale);

// How the tokens of sequences change their states: S_out = transition S_in + state.
struct DeltaRuleSummary {
  at::Tensor transition;  // [sequences, HV, K, K]; zero if a document starts in the sequence
  at::Tensor state;       // [sequences, HV, K, V]: the final state if the initial one is zero
};
// Ignores the initial state. Computed without gradients.
DeltaRuleSummary ComposedDeltaRuleSummary(const DeltaRuleInputs& inputs);

}  // namespace halflife::ops
