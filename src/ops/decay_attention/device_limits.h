// The properties of this machine's GPUs on which the schedules of decay attention depend.
#pragma once

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::ops {

// Whether scans use the warpgroup instructions (wgmma), which only Hopper (sm_90) has. Their
// kernels are empty unless compiled for sm_90a; a build for sm_90, for example by CMake's "native",
// does not contain them. `setting` is the value of HALFLIFE_WARPGROUPS, null if unset: "0" selects
// the kernels for other GPUs. These give the same bits in forward and the same gradients up to
// rounding.
bool ShouldUseWgmma(int compute_capability_major, bool built_for_sm_90a, const char* setting);

// The limits of CUDA device `index`, which must exist. Only in builds with CUDA.
kernels::DeviceLimits LimitsOfGpu(int index);

}  // namespace halflife::ops
