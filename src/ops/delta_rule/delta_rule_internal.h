// Declarations that the files of the delta rule share. Internal to this folder.
//
// delta_rule.cc checks a call and selects its implementation: the kernels (delta_rule_kernels.cc),
// or LibTorch operations for calls that the kernels do not support (delta_rule_composed.cc). One
// token is delta_rule_step.cc, and rows that are split across ranks are delta_rule_segments.cc.
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

// Returns the number of initial and final states.
int64_t NumDeltaSequences(const DeltaRuleInputs& inputs);

// The delta rule over rows that are split across ranks: the segments exchange their states.
//
// Requires inputs.segment. Returns only `out`, because only the last rank has the final state.
DeltaRuleOutput DeltaRuleOverSegments(const DeltaRuleInputs& inputs, double scale);

// ---- With LibTorch operations that autograd differentiates (delta_rule_composed.cc). A NaN or an
// infinity in one document can reach other documents that share a chunk with it.

// DeltaRule() for whole sequences. These functions, and those below, expect checked inputs and
// ignore the segment.
DeltaRuleOutput ComposedDeltaRule(const DeltaRuleInputs& inputs, double scale);
// Ignores the initial state. Computed without gradients.
DeltaRuleSummary ComposedDeltaRuleSummary(const DeltaRuleInputs& inputs);
at::Tensor ComposedDeltaRuleStep(const DeltaRuleStepInputs& inputs, double scale,
                                 at::Tensor& state);

// ---- With the kernels behind kernels/delta_rule/delta_rule_args.h (delta_rule_kernels.cc).

// Returns true if the kernels support the call: its device, dtype and sizes. On a GPU, gradients of
// fp32 heads are supported up to a smaller K.
bool HasDeltaRuleKernels(const DeltaRuleInputs& inputs);
DeltaRuleOutput KernelDeltaRule(const DeltaRuleInputs& inputs, double scale);
// Ignores the initial state.
DeltaRuleSummary KernelDeltaRuleSummary(const DeltaRuleInputs& inputs);
// dL/d(initial state) [sequences, HV, K, V] through the sequences' own outputs, given dL/d(out). It
// does not depend on the initial state.
at::Tensor KernelDeltaRuleAdjoint(const DeltaRuleInputs& inputs, double scale,
                                  const at::Tensor& dout);
bool HasDeltaRuleStepKernel(const DeltaRuleStepInputs& inputs);
at::Tensor KernelDeltaRuleStep(const DeltaRuleStepInputs& inputs, double scale, at::Tensor& state);

}  // namespace halflife::ops
