// What a call must bring besides a shape that MakePlan takes. Faults are the caller's: internal
// errors.
#pragma once

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cpu {

void CheckCall(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
void CheckCall(const DecayAttentionGradArgs& args, const DecayAttentionPlan& plan);
void CheckCall(const DecaySegmentArgs& args, const DecayAttentionPlan& plan, bool reverse);

}  // namespace halflife::kernels::cpu
