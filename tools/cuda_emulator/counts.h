// What the blocks of the emulator have done: instructions that it sees, whatever the machine. Not
// seen are plain loads and stores, of global memory or shared.
//
//   const emu::Counts before = emu::CountsSoFar();
//   cuda::Forward(args, plan, nullptr);
//   const int64_t products = emu::CountsSoFar().mma - before.mma;
#pragma once

#include <cstdint>

namespace halflife::kernels::emu {

struct Counts {
  int64_t blocks = 0;
  int64_t copied_bytes = 0;  // from global memory to shared: by cp.async without zero fill, by TMA
  int64_t ldmatrix_bytes = 0;  // by ldmatrix.x4 from shared memory: 512 a warp
  int64_t mma = 0;             // mma.sync of a warp, m16n8k16 or m16n8k8
  int64_t wgmma = 0;           // m64n64k16 of a warpgroup
  int64_t barriers = 0;        // __syncthreads of a block
};
// Of all launches of the process that have ended.
Counts CountsSoFar();

}  // namespace halflife::kernels::emu
