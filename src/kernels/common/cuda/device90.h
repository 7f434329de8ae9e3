// Wrappers for the instructions of Hopper (sm_90a), like device.h with one version for nvcc and one
// for the emulator: mbarriers, tile loads by TMA, and wgmma on tiles with 128-byte swizzle.
//
//   if (threadIdx.x == 0) { MbarrierInit(full, 1); MbarrierInitFence(); }
//   __syncthreads();
//   if (threadIdx.x == 0) {
//     MbarrierArriveExpectTx(full, 8192);
//     TmaLoad2d(tile, &map, full, k0, row0);
//   }
//   MbarrierWait(full, 0);
//   WgmmaFence();
//   for (int k = 0; k < 64; k += 16)
//     WgmmaM64N64K16(d, AdvanceTile(a, 2 * k), AdvanceTile(b, 2 * k));
//   WgmmaCommit();
//   WgmmaWait<0>();
//   FenceRegisters(d);
//
// Compile with -gencode arch=compute_90a,code=sm_90a. Host code that creates a TensorMap can be
// compiled for any architecture.
#pragma once

#include <memory>

#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/tensor_map_cache.h"

#if !HL_EMULATE
#include <cuda.h>
#endif

// 1 if the current compilation supports these instructions. If a source is compiled for several
// architectures, only the sm_90a version has the bodies of such kernels.
#if HL_EMULATE || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HL_HAS_WGMMA 1
#else
#define HL_HAS_WGMMA 0
#endif

namespace halflife::kernels {

// ---- tensor maps: host side ----

#if HL_EMULATE
using TensorMap = emu::TensorMap;
#else
using TensorMap = CUtensorMap;
#endif

// Encodes the tensor map of a matrix that was checked by the caller.
inline TensorMap EncodeTensorMap(const TileSource& source) {
#if HL_EMULATE
  return {static_cast<const unsigned char*>(source.data),
          source.num_rows,
          source.num_cols,
          source.row_bytes,
          source.element_bytes,
          source.box_rows,
          128 / source.element_bytes};
#else
  // Looked up through the runtime, so that the program does not link the driver library.
  static void* entry = nullptr;
  static cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  static const cudaError_t status = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
  HL_CHECK(status == cudaSuccess && found == cudaDriverEntryPointSuccess,
           "cuTensorMapEncodeTiled is missing: ", cudaGetErrorString(status),
           ". Install a driver for CUDA 12.0 or later.");
  TensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(source.num_cols),
                               static_cast<cuuint64_t>(source.num_rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(source.row_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / source.element_bytes),
                             static_cast<cuuint32_t>(source.box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
      &map,
      source.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
      2, const_cast<void*>(source.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HL_CHECK(result == CUDA_SUCCESS, "tensor map ", source.name, ": cuTensorMapEncodeTiled gives ",
           static_cast<int>(result));
  return map;
#endif
}

inline TensorMap MakeTensorMap(const TileSource& source) {
  HL_CHECK(source.element_bytes == 2 || source.element_bytes == 4, "tensor map ", source.name,
           ": elements of ", source.element_bytes, " bytes. Use 2 (bf16) or 4 (fp32).");
  HL_CHECK(source.data != nullptr && reinterpret_cast<uintptr_t>(source.data) % 16 == 0,
           "tensor map ", source.name, ": data at ", source.data,
           ". Use a non-null address that is a multiple of 16.");
  HL_CHECK(source.num_rows >= 1 && source.num_cols >= 1 && source.num_rows < (int64_t{1} << 32) &&
               source.num_cols < (int64_t{1} << 32),
           "tensor map ", source.name, ": ", source.num_rows, " x ", source.num_cols,
           " elements. Use 1 to 2^32 - 1 of each.");
  HL_CHECK(source.row_bytes % 16 == 0 && source.row_bytes < (int64_t{1} << 40) &&
               source.row_bytes >= source.num_cols * source.element_bytes,
           "tensor map ", source.name, ": rows of ", source.num_cols, " elements ",
           source.row_bytes, " bytes apart. Use a multiple of 16 that holds a row.");
  HL_CHECK(source.box_rows >= 1 && source.box_rows <= 256, "tensor map ", source.name,
           ": a box of ", source.box_rows, " rows. Use 1 to 256.");
  // One for each thread that launches, because forward and backward launch from different threads.
  // It has 100 KiB, which other threads need not have.
  static thread_local std::unique_ptr<TensorMapCache<TensorMap>> cache;
  if (!cache) cache = std::make_unique<TensorMapCache<TensorMap>>();
  return cache->Find(source, [&] { return EncodeTensorMap(source); });
}

// ---- mbarriers: 8 bytes of shared memory. A phase ends when `count` threads have arrived and all
// expected bytes have been copied ----

HL_DEVICE void MbarrierInit(uint64_t* barrier, int count HL_LOC) {
#if HL_EMULATE
  emu::MbarrierInit(barrier, count, where);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SmemAddress(barrier)), "r"(count)
               : "memory");
#endif
}

// Makes the initializations visible to TMA. Call it from the thread that initialized the barriers,
// before __syncthreads().
HL_DEVICE void MbarrierInitFence() {
#if HL_EMULATE
  emu::FenceProxyAsync();
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

HL_DEVICE void MbarrierArrive(uint64_t* barrier HL_LOC) {
#if HL_EMULATE
  emu::MbarrierArrive(barrier, 0, where);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SmemAddress(barrier)) : "memory");
#endif
}

// Arrives, and makes the phase also wait for `bytes` more bytes of bulk copies.
HL_DEVICE void MbarrierArriveExpectTx(uint64_t* barrier, int bytes HL_LOC) {
#if HL_EMULATE
  emu::MbarrierArrive(barrier, bytes, where);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SmemAddress(barrier)),
               "r"(bytes)
               : "memory");
#endif
}

// Waits until the phase of this parity (0 for the first, then 1, 0, ..) has ended.
HL_DEVICE void MbarrierWait(uint64_t* barrier, uint32_t parity HL_LOC) {
#if HL_EMULATE
  emu::MbarrierWait(barrier, parity, where);
#else
  const uint32_t address = SmemAddress(barrier);
  uint32_t done = 0;
  do {  // try_wait itself sleeps for a while
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
  } while (done == 0);
#endif
}

// ---- TMA ----

// Copies the box whose first element is (row, col) of the map; call it from one thread. It
// completes box_rows * 128 bytes on the barrier. `smem` must be aligned to 1024 bytes, and `map`
// must be a HL_GRID_CONSTANT parameter of the kernel. `row` and `col` may be outside the matrix,
// but `col` must be a multiple of 16 bytes: otherwise the GPU reports an illegal instruction.
HL_DEVICE void TmaLoad2d(void* smem, const TensorMap* map, uint64_t* barrier, int col,
                         int row HL_LOC) {
#if HL_EMULATE
  emu::TmaLoad2d(smem, *map, barrier, col, row, where);
#else
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(SmemAddress(smem)),
      "l"(map), "r"(SmemAddress(barrier)), "r"(col), "r"(row)
      : "memory");
#endif
}

// Copies contiguous bytes from global to shared memory; call it from one thread. Both addresses and
// `bytes` are multiples of 16. It completes `bytes` on the barrier.
HL_DEVICE void BulkLoad(void* smem, const void* source, int bytes, uint64_t* barrier HL_LOC) {
#if HL_EMULATE
  emu::BulkLoad(smem, source, bytes, barrier, where);
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(SmemAddress(smem)),
      "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(SmemAddress(barrier))
      : "memory");
#endif
}

// Orders this thread's ordinary stores (and cp.async) to shared memory before a wgmma or TMA that
// reads them. Each writer calls the fence, then all threads a barrier.
HL_DEVICE void FenceProxyAsync() {
#if HL_EMULATE
  emu::FenceProxyAsync();
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- registers per thread; the kernel's threads must be whole warpgroups ----

// Every warp of a warpgroup must call one of these once. TakeRegisters() raises the number of
// registers per thread to kRegisters, and waits until they are free; the other call lowers it.
// kRegisters is a multiple of 8 from 24 to 256.
template <int kRegisters>
HL_DEVICE void TakeRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#if !HL_EMULATE
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
HL_DEVICE void GiveRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#if !HL_EMULATE
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
// Returns the warpgroup's index in the block. The shuffle lets the compiler see that it is the same
// in all lanes of a warp.
HL_DEVICE int WarpgroupId() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
}

// ---- wgmma: one warpgroup, bf16 operands, K-major tiles with 128-byte swizzle ----

// Returns the descriptor of a tile [rows, 64] bf16 that is aligned to 1024 bytes. The unit of 16
// bytes that begins with element (r, 8 u) is at unit u ^ (r % 8) of row r.
HL_DEVICE uint64_t TileDescriptor(const void* smem HL_LOC) {
#if HL_EMULATE
  return emu::TileDescriptor(smem, where);
#else
  return static_cast<uint64_t>((SmemAddress(smem) & 0x3ffffu) >> 4) |
         (uint64_t{1} << 16) |          // leading offset: not used with this swizzle
         (uint64_t{1024 >> 4} << 32) |  // distance from 8 rows to the next 8
         (uint64_t{1} << 62);           // 128-byte swizzle
#endif
}
// Returns the same tile starting `bytes` later (a multiple of 16): 2 k for column k, 128 r for row
// r.
HL_DEVICE uint64_t AdvanceTile(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

// Required before the first wgmma, and after any change to an accumulator or to an A operand in
// registers.
HL_DEVICE void WgmmaFence() {
#if HL_EMULATE
  emu::WgmmaFence();
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

HL_DEVICE void WgmmaCommit() {
#if HL_EMULATE
  emu::WgmmaCommit();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until all but the last kPending groups have finished. Before that, neither accumulators nor
// operands may be accessed.
template <int kPending>
HL_DEVICE void WgmmaWait(HL_LOC_ONLY) {
  static_assert(kPending >= 0 && kPending <= 7);
#if HL_EMULATE
  emu::WgmmaWait(kPending, where);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// The 32 accumulators as asm operands %0 to %31.
#define HL_WGMMA_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HL_WGMMA_D(d)                                                                              \
  HL_WGMMA_D4(d, 0), HL_WGMMA_D4(d, 4), HL_WGMMA_D4(d, 8), HL_WGMMA_D4(d, 12), HL_WGMMA_D4(d, 16), \
      HL_WGMMA_D4(d, 20), HL_WGMMA_D4(d, 24), HL_WGMMA_D4(d, 28)
#define HL_WGMMA_D_TEXT                                          \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13," \
  " %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25," \
  " %26, %27, %28, %29, %30, %31}"

// d += a b^T with a [64, 16] and b [64, 16] in shared memory, d [64, 64] fp32. WgmmaD in
// tools/cuda_emulator/swizzle.h maps the elements of d.
HL_DEVICE void WgmmaM64N64K16(float (&d)[32], uint64_t desc_a, uint64_t desc_b HL_LOC) {
#if HL_EMULATE
  emu::WgmmaShared(d, desc_a, desc_b, where);
#else
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HL_WGMMA_D_TEXT
               ", %32, %33, 1, 1, 1, 0, 0;"
               : HL_WGMMA_D(d)
               : "l"(desc_a), "l"(desc_b));
#endif
}

// The same with a in registers: the warp's 16 rows as in mma.m16n8k16.
HL_DEVICE void WgmmaM64N64K16(float (&d)[32], const uint32_t (&a)[4], uint64_t desc_b HL_LOC) {
#if HL_EMULATE
  emu::WgmmaRegisters(d, a, desc_b, where);
#else
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HL_WGMMA_D_TEXT
               ", {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
               : HL_WGMMA_D(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b));
#endif
}

// The same with b given by rows of a tile and transposed on load: d += a b with a [64, 16] in
// registers and b [16, 64], which is 16 rows of a tile starting at a multiple of 8:
// AdvanceTile(tile, 128 row). The descriptor is the same with this swizzle: 1024 bytes from 8 rows
// of b to the next 8, and 64 columns are one swizzle atom.
HL_DEVICE void WgmmaM64N64K16OfRows(float (&d)[32], const uint32_t (&a)[4],
                                    uint64_t desc_b HL_LOC) {
#if HL_EMULATE
  emu::WgmmaRegistersOfRows(d, a, desc_b, where);
#else
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HL_WGMMA_D_TEXT
               ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
               : HL_WGMMA_D(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b));
#endif
}

// Pins d. The compiler does not know that d is in use between issue and wait, and might move an
// access there. Use it before WgmmaFence and after WgmmaWait.
HL_DEVICE void FenceRegisters([[maybe_unused]] float (&d)[32]) {
#if !HL_EMULATE
  asm volatile("" : HL_WGMMA_D(d)::"memory");
#endif
}

// Call before WgmmaFence: makes sure that the register operands of the products have been computed.
template <int kTiles>
HL_DEVICE void FenceOperands([[maybe_unused]] uint32_t (&a)[kTiles][4]) {
#if !HL_EMULATE
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
    asm volatile("" : "+r"(a[j][0]), "+r"(a[j][1]), "+r"(a[j][2]), "+r"(a[j][3])::"memory");
#endif
}

// Call after WgmmaWait: keeps the register operands of the products in place until then.
template <int kTiles>
HL_DEVICE void KeepRegisters([[maybe_unused]] const uint32_t (&a)[kTiles][4]) {
#if !HL_EMULATE
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
    asm volatile("" ::"r"(a[j][0]), "r"(a[j][1]), "r"(a[j][2]), "r"(a[j][3]) : "memory");
#endif
}

#undef HL_WGMMA_D_TEXT
#undef HL_WGMMA_D
#undef HL_WGMMA_D4

}  // namespace halflife::kernels
