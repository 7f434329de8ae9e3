#include "kernels/common/cuda/device90.h"
#include "tools/cuda_emulator/on_device.h"
#include "tools/cuda_emulator/swizzle.h"
#include "tools/cuda_emulator/wrapper_kernels.h"

namespace halflife::kernels::test {
namespace {

constexpr int kTile = 64;
constexpr int kTileBytes = kTile * kTile * 2;
constexpr int kStages = 2;

// Threads 0 to 127 compute; warp 4 loads.
template <bool kAInRegisters>
__global__ void __launch_bounds__(160)
    WgmmaProductKernel(HL_GRID_CONSTANT const TensorMap map_a,
                       HL_GRID_CONSTANT const TensorMap map_b, float* out, int depth) {
  HL_DYNAMIC_SMEM(smem);
  HL_SHARED(full, uint64_t[kStages]);
  HL_SHARED(empty, uint64_t[kStages]);
  SmemCarver carver(smem);
  auto* const a_tiles = carver.Take<unsigned char, 1024>(kStages * kTileBytes);
  auto* const b_tiles = carver.Take<unsigned char, 1024>(kStages * kTileBytes);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      MbarrierInit(full + stage, 1);
      MbarrierInit(empty + stage, 128);
    }
    MbarrierInitFence();
  }
  __syncthreads();
  const int num_steps = depth / kTile;
  if (thread >= 128) {
    if (thread > 128) return;
    for (int step = 0; step < num_steps; ++step) {
      const int stage = step % kStages, round = step / kStages;
      if (round > 0) MbarrierWait(empty + stage, static_cast<uint32_t>((round - 1) & 1));
      MbarrierArriveExpectTx(full + stage, 2 * kTileBytes);
      TmaLoad2d(a_tiles + stage * kTileBytes, &map_a, full + stage, step * kTile, 0);
      TmaLoad2d(b_tiles + stage * kTileBytes, &map_b, full + stage, step * kTile, 0);
    }
    return;
  }
  float d[32];
  for (float& x : d) x = 0;
  uint32_t fragments[4][4] = {};
  for (int step = 0; step < num_steps; ++step) {
    const int stage = step % kStages;
    MbarrierWait(full + stage, static_cast<uint32_t>(step / kStages & 1));
    const uint64_t tile_b = TileDescriptor(b_tiles + stage * kTileBytes);
    if (kAInRegisters) {
      const auto* const a = reinterpret_cast<const bf16*>(a_tiles + stage * kTileBytes);
      for (int k = 0; k < 4; ++k) {
        const FragmentCoord at = LdMatrixA(thread % 32);
        LdMatrixX4<false>(fragments[k],
                          a + SwizzledOffset<kTile>(thread / 32 * 16 + at.row, 16 * k + at.col));
      }
      WgmmaFence();
#pragma unroll
      for (int k = 0; k < 4; ++k) WgmmaM64N64K16(d, fragments[k], AdvanceTile(tile_b, 32 * k));
    } else {
      const uint64_t tile_a = TileDescriptor(a_tiles + stage * kTileBytes);
      WgmmaFence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        WgmmaM64N64K16(d, AdvanceTile(tile_a, 32 * k), AdvanceTile(tile_b, 32 * k));
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
    FenceRegisters(d);
    KeepRegisters(fragments);
    MbarrierArrive(empty + stage);
  }
  for (int i = 0; i < 32; ++i) {
    const FragmentCoord at = WgmmaD(thread, i);
    out[at.row * kTile + at.col] = d[i];
  }
}

__global__ void TmaKernel(HL_GRID_CONSTANT const TensorMap map, int row, int col, uint16_t* out) {
  HL_DYNAMIC_SMEM(smem);
  HL_SHARED(full, uint64_t);
  if (threadIdx.x == 0) {
    MbarrierInit(&full, 1);
    MbarrierInitFence();
    MbarrierArriveExpectTx(&full, 16 * 128);
    TmaLoad2d(smem, &map, &full, col, row);
  }
  __syncthreads();
  MbarrierWait(&full, 0);
  const auto* const tile = reinterpret_cast<const uint16_t*>(smem);
  for (int i = static_cast<int>(threadIdx.x); i < 16 * kTile; i += 32) out[i] = tile[i];
}

__global__ void BulkLoadKernel(const uint32_t* words, uint32_t* out) {
  HL_DYNAMIC_SMEM(smem);
  HL_SHARED(full, uint64_t);
  if (threadIdx.x == 0) {
    MbarrierInit(&full, 1);
    MbarrierInitFence();
    MbarrierArriveExpectTx(&full, 4 * (kBulkFirst + kBulkSecond));
    // In the order of the source, not of the targets.
    BulkLoad(smem + 4 * kBulkSecond, words, 4 * kBulkFirst, &full);
    BulkLoad(smem, words + kBulkFirst, 4 * kBulkSecond, &full);
  }
  __syncthreads();
  MbarrierWait(&full, 0);
  const auto* const copy = reinterpret_cast<const uint32_t*>(smem);
  for (int i = static_cast<int>(threadIdx.x); i < kBulkFirst + kBulkSecond; i += 32)
    out[i] = copy[i];
}

__global__ void __launch_bounds__(128)
    StoredProductKernel(const uint16_t* a, const uint16_t* b, float* out) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  auto* const tile_a = carver.Take<uint16_t, 1024>(kTile * kTile);
  auto* const tile_b = carver.Take<uint16_t, 1024>(kTile * kTile);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kTile * kTile; i += 128) {
    tile_a[SwizzledOffset<kTile>(i / kTile, i % kTile)] = a[i];
    tile_b[SwizzledOffset<kTile>(i / kTile, i % kTile)] = b[i];
  }
  FenceProxyAsync();
  __syncthreads();
  float d[32];
  for (float& x : d) x = 1;
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {  // one group each, so the waits are in the middle of a chain
    WgmmaM64N64K16(d, AdvanceTile(TileDescriptor(tile_a), 32 * k),
                   AdvanceTile(TileDescriptor(tile_b), 32 * k));
    WgmmaCommit();
  }
  WgmmaWait<2>();
  WgmmaWait<0>();
  FenceRegisters(d);
  for (int i = 0; i < 32; ++i) {
    const FragmentCoord at = WgmmaD(thread, i);
    out[at.row * kTile + at.col] = d[i];
  }
}

// a [64, depth] is in registers; b [depth, 64] is not transposed.
__global__ void __launch_bounds__(128)
    ProductOfRowsKernel(const uint16_t* a, const uint16_t* b, float* out) {
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  auto* const tile_a = carver.Take<uint16_t, 1024>(kTile * kTile);
  auto* const tile_b = carver.Take<uint16_t, 1024>(kTile * kTile);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kTile * kTile; i += 128) {
    tile_a[SwizzledOffset<kTile>(i / kTile, i % kTile)] = a[i];
    tile_b[SwizzledOffset<kTile>(i % kTile, i / kTile)] = b[i];
  }
  FenceProxyAsync();
  __syncthreads();
  float d[32];
  for (float& x : d) x = 1;
  uint32_t fragments[4][4];
  for (int k = 0; k < 4; ++k) {
    const FragmentCoord at = LdMatrixA(thread % 32);
    LdMatrixX4<false>(fragments[k],
                      tile_a + SwizzledOffset<kTile>(thread / 32 * 16 + at.row, 16 * k + at.col));
  }
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    WgmmaM64N64K16OfRows(d, fragments[k], AdvanceTile(TileDescriptor(tile_b), 128 * 16 * k));
  WgmmaCommit();
  WgmmaWait<0>();
  FenceRegisters(d);
  for (int i = 0; i < 32; ++i) {
    const FragmentCoord at = WgmmaD(thread, i);
    out[at.row * kTile + at.col] = d[i];
  }
}

TensorMap MapOf(const uint16_t* data, int rows, int cols, int box_rows, const char* name) {
  return MakeTensorMap({data, rows, cols, int64_t{2} * cols, 2, box_rows, name});
}

}  // namespace

void RunWgmmaProduct(Product& product, bool a_in_registers) {
  OnDevice<uint16_t> a(&product.a), b(&product.b);
  OnDevice<float> out(&product.out);
  const TensorMap map_a = MapOf(a.get(), kTile, product.depth, kTile, "a");
  const TensorMap map_b = MapOf(b.get(), kTile, product.depth, kTile, "b");
  Launch({1, 160, 2 * kStages * kTileBytes, "wgmma product"}, nullptr,
         a_in_registers ? WgmmaProductKernel<true> : WgmmaProductKernel<false>, map_a, map_b,
         out.get(), product.depth);
  out.Download();
}

void RunProductOfRows(Product& product) {
  OnDevice<uint16_t> a(&product.a), b(&product.b);
  OnDevice<float> out(&product.out);
  Launch({1, 128, 2 * kTileBytes, "product of rows"}, nullptr, ProductOfRowsKernel, a.get(),
         b.get(), out.get());
  out.Download();
}

void RunTma(TmaCase& io) {
  OnDevice<uint16_t> matrix(&io.matrix), tile(&io.tile);
  const TensorMap map = MapOf(matrix.get(), io.rows, io.cols, 16, "matrix");
  Launch({1, 32, 16 * 128, "tma"}, nullptr, TmaKernel, map, io.row, io.col, tile.get());
  tile.Download();
}

std::vector<uint32_t> RunBulkLoad(const std::vector<uint32_t>& words) {
  std::vector<uint32_t> source = words, copy(words.size());
  OnDevice<uint32_t> in(&source), out(&copy);
  Launch({1, 32, 4 * (kBulkFirst + kBulkSecond), "bulk load"}, nullptr, BulkLoadKernel, in.get(),
         out.get());
  out.Download();
  return copy;
}

void RunStoredProduct(Product& product) {
  OnDevice<uint16_t> a(&product.a), b(&product.b);
  OnDevice<float> out(&product.out);
  Launch({1, 128, 2 * kTileBytes, "stored product"}, nullptr, StoredProductKernel, a.get(), b.get(),
         out.get());
  out.Download();
}

}  // namespace halflife::kernels::test
