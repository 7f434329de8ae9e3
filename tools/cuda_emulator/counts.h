// Counts of the instructions that emulated blocks have executed. They do not depend on the machine.
// Plain loads and stores, of global or shared memory, are not counted.
//
//   const emu::Counts before = emu::CountsSoFar();
//   cuda::Forward(args, plan, nullptr);
//   const int64_t products = emu::CountsSoFar().mma - before.mma;
#pragma once

#include <cstdint>

namespace halflife::kernels::emu {

struct Counts {
  int64_t blocks = 0;
  int64_t copied_bytes = 0;    // global to shared memory, by cp.async (without zero fill) and TMA
  int64_t ldmatrix_bytes = 0;  // read by ldmatrix.x4: 512 per warp
  int64_t mma = 0;             // mma.sync per warp, m16n8k16 or m16n8k8
  int64_t wgmma = 0;           // m64n64k16 per warpgroup
  int64_t barriers = 0;        // __syncthreads per block
};
// Returns the sum over all blocks that have ended in this process.
Counts CountsSoFar();

}  // namespace halflife::kernels::emu
