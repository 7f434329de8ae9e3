// Checks of a call, in addition to the shape checks of MakePlan. A failure is a bug of the caller
// and is reported as an internal error.
#pragma once

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cpu {

void CheckCall(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
void CheckCall(const DecayAttentionGradArgs& args, const DecayAttentionPlan& plan);
void CheckCall(const DecaySegmentArgs& args, const DecayAttentionPlan& plan, bool reverse);

}  // namespace halflife::kernels::cpu
