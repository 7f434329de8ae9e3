// Decay attention on tensor cores, as launched by the host: scans over slices of a head, over
// segments of a sequence and, if outputs are normalised, for the normaliser. Internal header.
//
//   if (ForwardRoute(args, plan) != Route::kSimt) ScanForward(args, plan, stream);
#pragma once

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cuda {

// Error (exit 2) if the plan's blocks are not compiled or exceed the device's shared memory.
void CheckBlocks(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

void ScanForward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                 cudaStream_t stream);
void ScanBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  cudaStream_t stream);
void ScanSummary(const DecaySegmentArgs& args, const DecayAttentionPlan& plan, cudaStream_t stream);
void ScanReverseSummary(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                        cudaStream_t stream);

}  // namespace halflife::kernels::cuda
