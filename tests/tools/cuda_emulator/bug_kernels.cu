#include "tools/cuda_emulator/bug_kernels.h"

#include <stdexcept>

#include "kernels/common/cuda/device90.h"
#include "tools/cuda_emulator/swizzle.h"

namespace halflife::kernels::test {
namespace {

__global__ void BlockSumKernel(const float* x, float* out, bool fixed) {
  HL_SHARED(partial, float[4]);
  const int thread = static_cast<int>(threadIdx.x);
  const float sum = WarpSum(x[thread]);
  if (thread % 32 == 0) partial[thread / 32] = sum;
  if (fixed) __syncthreads();
  if (thread == 0) *out = partial[0] + partial[1] + partial[2] + partial[3];
}

__global__ void ShiftInWarpKernel(int* x, bool fixed) {
  HL_SHARED(values, int[32]);
  const int lane = static_cast<int>(threadIdx.x);
  values[lane] = x[lane];
  if (fixed) {
    __syncwarp();
  } else {
    (void)__shfl_sync(kFullWarp, lane, 0);
  }
  x[lane] = values[(lane + 1) % 32];
}

__global__ void CopyTwoGroupsKernel(const uint32_t* x, uint32_t* out, CopyMistake mistake) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  auto* const first = carver.Take<uint32_t>(64 * 4);
  auto* const second = carver.Take<uint32_t>(64 * 4);
  const int at = 4 * static_cast<int>(threadIdx.x);
  CpAsync16(first + at, x + at, true);
  CpAsyncCommit();
  CpAsync16(second + at, x + 256 + at, true);
  CpAsyncCommit();
  if (mistake == CopyMistake::kNoWaitAtAllAndExit) return;
  if (mistake == CopyMistake::kNone) CpAsyncWait<0>();
  if (mistake == CopyMistake::kWaitOneGroupLess) CpAsyncWait<1>();
  for (int i = 0; i < 4; ++i) {
    out[at + i] = 2 * first[at + i];
    out[256 + at + i] = 2 * second[at + i];
  }
  CpAsyncWait<0>();
}

__global__ void MistakeKernel(Mistake mistake, float* global, int count) {
  HL_DYNAMIC_SMEM(smem);
  HL_SHARED(numbers, float[8]);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  SmemCarver carver(smem);
  uint32_t r[4];
  float d[4] = {};
  switch (mistake) {
    case Mistake::kNone:
      break;
    case Mistake::kOneWarpSkipsBarrier:
      if (thread >= 32) __syncthreads();
      __syncthreads();
      break;
    case Mistake::kNamedBarrierForgotten:
      if (thread >= 32) NamedBarrierSync<3>(128);
      break;
    case Mistake::kNamedBarrierCount:
      NamedBarrierSync<3>(thread < 32 ? 64 : 128);
      break;
    case Mistake::kNamedBarrierOdd:
      NamedBarrierSync<3>(33);
      break;
    case Mistake::kShuffleDiverged:
      if (lane < 16) {
        (void)__shfl_xor_sync(kFullWarp, lane, 1);
      } else {
        (void)__shfl_xor_sync(kFullWarp, lane, 2);
      }
      break;
    case Mistake::kShuffleWithoutOwnLane:
      (void)__shfl_xor_sync(0x0000ffffu, lane, 1);
      break;
    case Mistake::kShuffleWidth:
      (void)__shfl_xor_sync(kFullWarp, lane, 1, 24);
      break;
    case Mistake::kHalfWarpMma: {
      if (lane >= 16) return;
      const uint32_t a[4] = {}, b[2] = {};
      MmaM16N8K16(d, a, b);
      break;
    }
    case Mistake::kLdMatrixMisaligned:
      LdMatrixX4<false>(r, carver.Take<bf16>(256) + lane * 8 + (lane == 5 ? 4 : 0));
      break;
    case Mistake::kLdMatrixFromGlobal:
      LdMatrixX4<false>(r, global);
      break;
    case Mistake::kCopyMisaligned:
      CpAsync16(carver.Take<float>(64), global + 1, true);
      break;
    case Mistake::kWordMisaligned:
      CpAsync4(carver.Take<float>(64), reinterpret_cast<const char*>(global) + 2, true);
      break;
    case Mistake::kCarveTooMuch:
      carver.Take<float>(512);
      carver.Take<float>(513);
      break;
    case Mistake::kCarveTwoLayouts:
      carver.Take<float>(thread < 32 ? 8 : 16);
      break;
    case Mistake::kStaticTooMuch: {
      HL_SHARED(large, float[16000]);
      large[thread] = 0;
      break;
    }
    case Mistake::kSharedPastArray: {
      auto* const first = carver.Take<float>(100);
      carver.Take<float>(100);
      first[thread] = 1;  // 128 threads
      break;
    }
    case Mistake::kStaticPastArray: {
      float* const begin = numbers;
      begin[thread] = 1;
      break;
    }
    case Mistake::kGlobalPastArray:
      if (thread <= count) global[thread] = 1;
      break;
    case Mistake::kException:
      throw std::runtime_error("no kernel throws");
    case Mistake::kTrap:
      __trap();
  }
}

// Loads the tile again after ordinary accesses to it, by one thread.
HL_DEVICE void OverwriteByCopy(unsigned char* smem, const TensorMap& map, uint64_t* full,
                               HopperMistake mistake) {
  using M = HopperMistake;
  if (mistake != M::kNoFenceBeforeBulkCopy && mistake != M::kCopyOverReads) return;
  const int thread = static_cast<int>(threadIdx.x);
  volatile auto* const word = reinterpret_cast<uint16_t*>(smem) + 8 * thread;
  if (mistake == M::kNoFenceBeforeBulkCopy) {
    *word = 0x4000;
    __syncthreads();
  } else {
    (void)*word;
    __syncwarp();
  }
  if (thread == 0) {
    MbarrierArriveExpectTx(full, 8192);
    TmaLoad2d(smem, &map, full, 0, 0);
  }
  MbarrierWait(full, 1);
}

__global__ void CopyFourFloatsKernel(const float* from, float* to) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}

__global__ void __launch_bounds__(128)
    TileSquareKernel(HL_GRID_CONSTANT const TensorMap map, float* out, HopperMistake mistake) {
  HL_DYNAMIC_SMEM(smem);
  HL_SHARED(full, uint64_t);
  using M = HopperMistake;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    if (mistake != M::kNoMbarrierInit) MbarrierInit(&full, 1);
    if (mistake != M::kNoInitFence) MbarrierInitFence();
    const int bytes = mistake == M::kBytesForgotten ? 64
                      : mistake == M::kTooManyBytes ? 8200
                                                    : 8192;
    MbarrierArriveExpectTx(&full, bytes);
    if (mistake == M::kOverArrival) MbarrierArrive(&full);
    TmaLoad2d(smem + (mistake == M::kMisalignedTile ? 512 : 0), &map, &full,
              mistake == M::kMisalignedColumn ? -4 : 0, 0);
    if (mistake == M::kMisalignedBytes) BulkLoad(smem, out, 24, &full);
  }
  if (mistake != M::kNoBarrierAfterInit) __syncthreads();
  if (mistake != M::kWaitForgotten) MbarrierWait(&full, 0);
  if (mistake == M::kNoProxyFence || mistake == M::kFenceOfAnotherThread) {
    reinterpret_cast<uint16_t*>(smem)[8 * thread] = 0x4000;
    __syncthreads();
    if (mistake == M::kFenceOfAnotherThread && thread == 0) FenceProxyAsync();
    __syncthreads();
  }
  OverwriteByCopy(smem, map, &full, mistake);
  float d[32];
  for (float& x : d) x = 0;
  uint32_t a[4] = {0, 0, 0, 0};
  uint64_t tile = TileDescriptor(smem);
  if (mistake == M::kBadDescriptor) tile = AdvanceTile(tile, 112);
  if (mistake == M::kTwoDescriptors && thread >= 64) tile = AdvanceTile(tile, 1024);
  if (mistake != M::kNoWgmmaFence) WgmmaFence();
  for (int k = 0; k < 4; ++k) {
    WgmmaM64N64K16(d, AdvanceTile(tile, 32 * k), AdvanceTile(tile, 32 * k));
  }
  if (mistake == M::kAccumulatorsChanged) {
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaFence();
    for (float& x : d) x *= 2;
    WgmmaM64N64K16(d, tile, tile);
  }
  if (mistake == M::kOperandsChanged) a[1] = 1;
  if (mistake == M::kOperandsChanged || mistake == M::kOperandsChangedInFlight)
    WgmmaM64N64K16(d, a, tile);
  if (mistake == M::kOperandsChangedInFlight) a[1] = 1;
  if (mistake == M::kAccumulatorsChangedInFlight) d[0] = 1;
  if (mistake == M::kStoreOverReads) reinterpret_cast<uint16_t*>(smem)[8 * thread] = 0x4000;
  if (mistake != M::kNoCommit) WgmmaCommit();
  if (mistake != M::kReadBeforeWait) WgmmaWait<0>();
  for (int i = 0; i < 32; ++i) {
    const FragmentCoord at = WgmmaD(thread, i);
    out[at.row * 64 + at.col] = d[i];
  }
  WgmmaWait<0>();
  if (mistake == M::kWaitForgotten) MbarrierWait(&full, 0);
}

__global__ void WriteFromTwoBlocksKernel(int* out) {
  if (threadIdx.x == 0) *out = static_cast<int>(blockIdx.x);
}

__global__ void NothingKernel() {}

}  // namespace

float BlockSum(const std::vector<float>& x, bool fixed) {
  float sum = 0;
  Launch({1, 128, 0, "block sum"}, nullptr, BlockSumKernel, x.data(), &sum, fixed);
  return sum;
}

void ShiftInWarp(std::vector<int>& x, bool fixed) {
  Launch({1, 32, 0, "shift"}, nullptr, ShiftInWarpKernel, x.data(), fixed);
}

void CopyFourFloats(const float* from, float* to) {
  Launch({1, 1, 0, "vector"}, nullptr, CopyFourFloatsKernel, from, to);
}

std::vector<uint32_t> CopyTwoGroups(const std::vector<uint32_t>& x, CopyMistake mistake) {
  std::vector<uint32_t> out(512);
  Launch({1, 64, 2048, "copy"}, nullptr, CopyTwoGroupsKernel, x.data(), out.data(), mistake);
  return out;
}

void RunMistake(Mistake mistake, std::vector<float>& global) {
  Launch({1, 128, 4096, "mistake"}, nullptr, MistakeKernel, mistake, global.data(),
         static_cast<int>(global.size()));
}

std::vector<float> TileSquare(const std::vector<uint16_t>& tile, HopperMistake mistake) {
  std::vector<float> out(64 * 64);
  const TensorMap map = MakeTensorMap({tile.data(), 64, 64, 128, 2, 64, "tile"});
  Launch({1, 128, 16384, "tile square"}, nullptr, TileSquareKernel, map, out.data(), mistake);
  return out;
}

void WriteFromTwoBlocks(std::vector<int>& out) {
  Launch({2, 32, 0, "two blocks"}, nullptr, WriteFromTwoBlocksKernel, out.data());
}

void LaunchShapeOf(int threads, int smem_bytes) {
  Launch({1, static_cast<unsigned>(threads), smem_bytes, "nothing"}, nullptr, NothingKernel);
}

}  // namespace halflife::kernels::test
