// The delta rule in chunks, as LibTorch operations that autograd differentiates.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/delta_rule/delta_rule.h"
#include "ops/delta_rule/delta_rule_internal.h"

namespace halflife::ops {

// Computes DeltaRule() for whole sequences. Expects checked inputs and ignores the segment.
//
// A NaN or an infinity in one document can reach other documents that share a chunk with it.
DeltaRuleOutput ComposedDeltaRule(const DeltaRuleInputs& inputs, double scale);

// Ignores the initial state. Computed without gradients.
DeltaRuleSummary ComposedDeltaRuleSummary(const DeltaRuleInputs& inputs);

// Computes DeltaRuleStep(). Expects checked inputs.
at::Tensor ComposedDeltaRuleStep(const DeltaRuleStepInputs& inputs, double scale,
                                 at::Tensor& state);

}  // namespace halflife::ops
