// The delta rule through the kernels behind kernels/delta_rule/delta_rule_args.h, which run on the
// CPU. All functions expect checked inputs and ignore the segment.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/delta_rule/delta_rule.h"
#include "ops/delta_rule/delta_rule_internal.h"

namespace halflife::ops {

// Whether the kernels support the device and the sizes of the inputs.
bool HasDeltaRuleKernels(const DeltaRuleInputs& inputs);

DeltaRuleOutput KernelDeltaRule(const DeltaRuleInputs& inputs, double scale);

// Ignores the initial state.
DeltaRuleSummary KernelDeltaRuleSummary(const DeltaRuleInputs& inputs);
// dL/d(initial state) [sequences, HV, K, V] through the sequences' own outputs, given dL/d(out). It
// does not depend on the initial state.
at::Tensor KernelDeltaRuleAdjoint(const DeltaRuleInputs& inputs, double scale,
                                  const at::Tensor& dout);

// DeltaRuleStep() for tensors on the CPU.
bool HasDeltaRuleStepKernel(const DeltaRuleStepInputs& inputs);
at::Tensor KernelDeltaRuleStep(const DeltaRuleStepInputs& inputs, double scale, at::Tensor& state);

}  // namespace halflife::ops
