// What the schedules of decay attention ask of a GPU of this machine.
#pragma once

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::ops {

// Whether scans go by the products of warpgroups, which Hopper (sm_90) alone has and which are
// compiled for sm_90a alone: a build for sm_90, as CMake's "native" is there, has no code in their
// kernels. `setting`: of HALFLIFE_WARPGROUPS, "0" has the kernels of other GPUs (forward the same
// bits, gradients but for rounding the same); null: not set.
bool TakesWarpgroups(int compute_capability_major, bool built_for_sm_90a, const char* setting);

// Of CUDA device `index`, which exists. In builds with CUDA.
kernels::DeviceLimits LimitsOfGpu(int index);

}  // namespace halflife::ops
