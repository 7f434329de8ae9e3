#include "tools/cuda_emulator/wrapper_kernels.h"

#include "kernels/common/cuda/device.h"
#include "tools/cuda_emulator/on_device.h"
#include "tools/cuda_emulator/swizzle.h"

namespace halflife::kernels::test {
namespace {

template <bool kTf32>
__global__ void MmaKernel(MmaCase* cases) {
  MmaCase& io = cases[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x);
  float d[4];
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    d[i] = io.d[lane][i];
    a[i] = io.a[lane][i];
  }
  for (int i = 0; i < 2; ++i) b[i] = io.b[lane][i];
  if (kTf32) {
    MmaTf32M16N8K8(d, a, b);
  } else {
    MmaM16N8K16(d, a, b);
  }
  for (int i = 0; i < 4; ++i) io.d[lane][i] = d[i];
}

__global__ void LdMatrixKernel(LdMatrixCase* cases) {
  HL_SHARED(rows, uint4[32]);
  LdMatrixCase& io = cases[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x);
  auto* const elements = reinterpret_cast<uint16_t*>(rows);
  for (int i = 0; i < 8; ++i) elements[8 * lane + i] = io.rows[lane][i];
  __syncwarp();
  uint32_t r[4];
  if (io.trans) {
    LdMatrixX4<true>(r, rows + io.row_of_lane[lane]);
  } else {
    LdMatrixX4<false>(r, rows + io.row_of_lane[lane]);
  }
  for (int i = 0; i < 4; ++i) io.r[lane][i] = r[i];
}

__global__ void ShuffleKernel(ShuffleCase* cases) {
  ShuffleCase& io = cases[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x);
  int from = -1;
  switch (io.kind) {
    case ShuffleKind::kIndex:
      from = __shfl_sync(kFullWarp, lane, io.operand, io.width);
      break;
    case ShuffleKind::kUp:
      from = __shfl_up_sync(kFullWarp, lane, io.operand, io.width);
      break;
    case ShuffleKind::kDown:
      from = __shfl_down_sync(kFullWarp, lane, io.operand, io.width);
      break;
    case ShuffleKind::kXor:
      from = __shfl_xor_sync(kFullWarp, lane, io.operand, io.width);
      break;
  }
  io.from_lane[lane] = from;
}

__global__ void VoteKernel(VoteCase* cases) {
  VoteCase& io = cases[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x);
  const int mine = static_cast<int>((io.predicates >> lane) & 1);
  io.ballot[lane] = __ballot_sync(kFullWarp, mine);
  io.any[lane] = __any_sync(kFullWarp, mine) != 0;
  io.all[lane] = __all_sync(kFullWarp, mine) != 0;
}

__global__ void ConversionKernel(ConversionCase* cases, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  ConversionCase& io = cases[i];
  io.packed = PackBf16(io.lo, io.hi);
  io.tf32 = ToTf32(io.lo);
  io.unpacked_lo = UnpackLo(io.packed);
  io.exp2 = Exp2Approx(io.lo);
}

__global__ void WarpReductionKernel(WarpReductions* io) {
  const int lane = static_cast<int>(threadIdx.x);
  io->sum[lane] = WarpSum(io->x[lane]);
  io->max[lane] = WarpMax(io->x[lane]);
}

__global__ void CopyKernel(CopyCase* io) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  auto* const units = carver.Take<uint32_t>(192);
  auto* const words = carver.Take<uint32_t>(16);
  const int lane = static_cast<int>(threadIdx.x);  // 16 lanes, one unit per lane and group
  for (int group = 0; group < 3; ++group) {
    const int at = group * 64 + lane * 4;
    CpAsync16(units + at, io->source + at, lane % 3 != 2);
    CpAsyncCommit();
  }
  CpAsyncWait<1>();
  for (int at = lane * 4; at < 128; at += 64) {
    for (int i = 0; i < 4; ++i) io->out[at + i] = units[at + i];
  }
  CpAsyncWait<0>();
  for (int i = 0; i < 4; ++i) io->out[128 + lane * 4 + i] = units[128 + lane * 4 + i];
  CpAsync4(words + lane, io->source + 1 + lane, lane % 3 != 2);
  CpAsyncCommit();
  CpAsyncWait<0>();
  io->words[lane] = words[lane];
}

__global__ void HandOverKernel(HandOver* io) {
  HL_SHARED(buffer, int[64]);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 64) {
    for (int round = 0; round < 4; ++round) {
      NamedBarrierSync<1>(128);  // wait until the buffer is free
      buffer[thread] = 100 * round + thread;
      NamedBarrierArrive<2>(128);  // the buffer is full
    }
  } else {
    int sum = 0;
    for (int round = 0; round < 4; ++round) {
      NamedBarrierArrive<1>(128);
      NamedBarrierSync<2>(128);
      sum += buffer[127 - thread];
    }
    io->received[thread - 64] = sum;
  }
  if (thread < 32) {
    const unsigned half = thread < 16 ? 0x0000ffffu : 0xffff0000u;
    int sum = thread;
    if (thread < 16) {
      for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(half, sum, offset);
    } else {
      for (int offset = 8; offset > 0; offset /= 2) sum -= __shfl_xor_sync(half, sum, offset);
    }
    __syncwarp();
    io->half_sums[thread] = sum;
  }
}

constexpr int kTile = 64;

// Loads 64 x 64 elements, starting at column `col`, with 128 threads.
__device__ void LoadTile(bf16* tile, const bf16* source, int depth, int col) {
  for (int unit = static_cast<int>(threadIdx.x); unit < kTile * 8; unit += 128) {
    const int row = unit / 8, at = unit % 8 * kUnitElements;
    CpAsync16(tile + SwizzledOffset<kTile>(row, at), source + row * depth + col + at, true);
  }
}

__global__ void __launch_bounds__(128)
    MmaProductKernel(const bf16* a, const bf16* b, float* out, int depth) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  bf16* const a_tiles = carver.Take<bf16>(2 * kTile * kTile);
  bf16* const b_tiles = carver.Take<bf16>(2 * kTile * kTile);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float d[8][4] = {};
  const int num_steps = depth / kTile;
  LoadTile(a_tiles, a, depth, 0);
  LoadTile(b_tiles, b, depth, 0);
  CpAsyncCommit();
  for (int step = 0; step < num_steps; ++step) {
    if (step + 1 < num_steps) {
      const int next = (step + 1) % 2 * kTile * kTile;
      LoadTile(a_tiles + next, a, depth, (step + 1) * kTile);
      LoadTile(b_tiles + next, b, depth, (step + 1) * kTile);
    }
    CpAsyncCommit();
    CpAsyncWait<1>();
    __syncthreads();
    const int stage = step % 2 * kTile * kTile;
    for (int k = 0; k < kTile; k += 16) {
      uint32_t fragment_a[4];
      const FragmentCoord at = LdMatrixA(lane);
      LdMatrixX4<false>(fragment_a,
                        a_tiles + stage + SwizzledOffset<kTile>(16 * warp + at.row, k + at.col));
      for (int n = 0; n < kTile; n += 16) {
        uint32_t pair[4];
        const FragmentCoord bt = LdMatrixBPair(lane);
        LdMatrixX4<false>(pair, b_tiles + stage + SwizzledOffset<kTile>(n + bt.row, k + bt.col));
        const uint32_t first[2] = {pair[0], pair[1]}, second[2] = {pair[2], pair[3]};
        MmaM16N8K16(d[n / 8], fragment_a, first);
        MmaM16N8K16(d[n / 8 + 1], fragment_a, second);
      }
    }
    __syncthreads();
  }
  CpAsyncWait<0>();
  for (int n = 0; n < 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      const FragmentCoord at = MmaD(lane, i);
      out[(16 * warp + at.row) * kTile + 8 * n + at.col] = d[n][i];
    }
  }
}

template <typename Case>
void RunCases(std::vector<Case>& cases, const char* name, void (*kernel)(Case*)) {
  OnDevice<Case> io(&cases);
  Launch({static_cast<unsigned>(cases.size()), 32, 0, name}, nullptr, kernel, io.get());
  io.Download();
}

}  // namespace

bool CanRun([[maybe_unused]] int major) {
#if HL_EMULATE
  return true;
#else
  cudaDeviceProp properties;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess &&
         (major == 8 ? properties.major >= 8 : properties.major == major);
#endif
}

void RunMmaBf16(std::vector<MmaCase>& cases) { RunCases(cases, "mma bf16", MmaKernel<false>); }
void RunMmaTf32(std::vector<MmaCase>& cases) { RunCases(cases, "mma tf32", MmaKernel<true>); }
void RunLdMatrix(std::vector<LdMatrixCase>& cases) { RunCases(cases, "ldmatrix", LdMatrixKernel); }
void RunShuffles(std::vector<ShuffleCase>& cases) { RunCases(cases, "shuffle", ShuffleKernel); }
void RunVotes(std::vector<VoteCase>& cases) { RunCases(cases, "vote", VoteKernel); }

void RunConversions(std::vector<ConversionCase>& cases) {
  OnDevice<ConversionCase> io(&cases);
  const int count = static_cast<int>(cases.size());
  Launch({static_cast<unsigned>((count + 127) / 128), 128, 0, "conversions"}, nullptr,
         ConversionKernel, io.get(), count);
  io.Download();
}

void RunWarpReductions(WarpReductions& host) {
  OnDevice<WarpReductions> io(&host);
  Launch({1, 32, 0, "warp reductions"}, nullptr, WarpReductionKernel, io.get());
  io.Download();
}

void RunCopies(CopyCase& host) {
  OnDevice<CopyCase> io(&host);
  Launch({1, 16, (192 + 16) * 4, "copies"}, nullptr, CopyKernel, io.get());
  io.Download();
}

void RunHandOver(HandOver& host) {
  OnDevice<HandOver> io(&host);
  Launch({1, 128, 0, "hand over"}, nullptr, HandOverKernel, io.get());
  io.Download();
}

void RunMmaProduct(Product& product) {
  OnDevice<uint16_t> a(&product.a), b(&product.b);
  OnDevice<float> out(&product.out);
  Launch({1, 128, 4 * kTile * kTile * 2, "mma product"}, nullptr, MmaProductKernel,
         reinterpret_cast<const bf16*>(a.get()), reinterpret_cast<const bf16*>(b.get()), out.get(),
         product.depth);
  out.Download();
}

}  // namespace halflife::kernels::test
