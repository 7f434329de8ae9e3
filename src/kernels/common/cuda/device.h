// Wrappers for all instructions that CUDA C++ does not expose: a PTX body for nvcc, and a call of
// the emulator if the same kernel source is compiled for the CPU (HL_EMULATE). Kernels therefore
// contain no asm, no <<<>>>, no `extern __shared__` and no `__shared__`, so the code that runs in
// the emulator is the code that runs on the device.
//
//   __global__ void Sum(const float* x, float* out) {  // grid: rows, block: 128 threads
//     HL_SHARED(partial, float[4]);
//     partial[threadIdx.x / 32] = WarpSum(x[blockIdx.x * 128 + threadIdx.x]);
//     __syncthreads();
//     if (threadIdx.x == 0) out[blockIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
//   }
//   Launch({rows, 128, 0, "row sum"}, stream, Sum, x, out);
//
// C++17 for nvcc, C++20 for g++. Device code requires sm_80 or later. Hopper's instructions are in
// device90.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#if HL_EMULATE
#include "tools/cuda_emulator/emulator.h"
#else
#include <cuda_runtime.h>
#endif

#include <cuda_bf16.h>

#include "core/error.h"
#include "kernels/common/cuda/launch_check.h"
#include "kernels/common/cuda/shared_bytes.h"

// HL_LOC is a trailing parameter of a wrapper: the source location in the kernel. The emulator uses
// it in messages, and to check that all lanes of a warp execute the same instruction. It is empty
// on the device. HL_LOC_ONLY is the same for wrappers without other parameters.
#if HL_EMULATE
#define HL_LOC_ONLY [[maybe_unused]] std::source_location where = std::source_location::current()
#define HL_LOC , HL_LOC_ONLY
#define HL_DEVICE inline
#define HL_GRID_CONSTANT
#else
#define HL_LOC_ONLY
#define HL_LOC
#define HL_DEVICE __device__ __forceinline__
#define HL_GRID_CONSTANT __grid_constant__
#endif

// HL_DYNAMIC_SMEM(smem) declares `smem`, the block's dynamic shared memory, as unsigned char
// aligned to 1024 bytes (required by tiles with 128-byte swizzle). HL_SHARED(sums, float[8])
// declares a variable in static shared memory.
#if HL_EMULATE
#define HL_DYNAMIC_SMEM(name) unsigned char* const name = ::halflife::kernels::emu::DynamicShared()
#define HL_SHARED(name, ...)                                                  \
  auto& name = ::halflife::kernels::emu::StaticShared<__VA_ARGS__>([]() {     \
    static char key; /* one address per variable and per template instance */ \
    return &key;                                                              \
  }())
#else
#define HL_DYNAMIC_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]
#define HL_SHARED(name, ...) __shared__ ::halflife::kernels::SharedType<__VA_ARGS__> name
#endif

namespace halflife::kernels {

template <typename T>
// Allows HL_SHARED(name, float[8]), although a declaration needs the name in the middle.
using SharedType = T;

using bf16 = __nv_bfloat16;

inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxSharedBytesPerBlock = 227 * 1024;  // sm_90, sm_100; sm_80 has 163 KiB
// A kernel must opt in to more than this, static and dynamic shared memory together.
inline constexpr int kDefaultSharedBytes = 48 * 1024;
inline constexpr int kMostStaticBytes = 8 * 1024;  // upper bound for the kernels of this project
inline constexpr unsigned kFullWarp = 0xffffffffu;

// ---- launch ----

struct LaunchShape {
  dim3 grid;
  dim3 block;
  int smem_bytes = 0;           // dynamic shared memory
  const char* name = "kernel";  // name in error messages
};

inline void CheckLaunchShape(const LaunchShape& shape) {
  const int64_t threads = int64_t{1} * shape.block.x * shape.block.y * shape.block.z;
  HL_CHECK(threads >= 1 && threads <= kMaxThreadsPerBlock, shape.name, ": a block of ", threads,
           " threads. Use 1 to ", kMaxThreadsPerBlock, ".");
  HL_CHECK(shape.smem_bytes >= 0 && shape.smem_bytes <= kMaxSharedBytesPerBlock, shape.name, ": ",
           shape.smem_bytes, " bytes of dynamic shared memory. Use at most ",
           kMaxSharedBytesPerBlock, " (227 KiB).");
  HL_CHECK(shape.grid.x >= 1 && shape.grid.y >= 1 && shape.grid.z >= 1 &&
               shape.grid.x <= 0x7fffffffu && shape.grid.y <= 65535 && shape.grid.z <= 65535,
           shape.name, ": a grid of ", shape.grid.x, " x ", shape.grid.y, " x ", shape.grid.z,
           " blocks. Use 1 to 2147483647 x 65535 x 65535.");
}

#if !HL_EMULATE
// Waits for `stream` and throws if its work failed. `whose` describes that work in the message.
inline void AwaitChecked(const LaunchShape& shape, cudaStream_t stream, const char* whose) {
  const cudaError_t status = cudaStreamSynchronize(stream);
  HL_CHECK(status == cudaSuccess, shape.name, ", ", shape.grid.x, " x ", shape.grid.y, " x ",
           shape.grid.z, " blocks of ", shape.block.x, " x ", shape.block.y, " x ", shape.block.z,
           " threads: ", whose, " failed: ", cudaGetErrorString(status), " (",
           cudaGetErrorName(status), ")");
}
#endif

#if !HL_EMULATE
// Allows the kernel to use more shared memory than the default on the current device.
inline void AllowSharedBytes(const void* kernel, int device, const LaunchShape& shape) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.smem_bytes);
  if (status == cudaSuccess) return;
  int most = 0;
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  HL_FAIL(ExitCode::kEnvironment, shape.name, ": a block needs ", shape.smem_bytes,
          " bytes of shared memory, and a block on this GPU has at most ", most, " (",
          cudaGetErrorString(status), "). Use smaller states or heads, or another GPU.");
}
inline void EnsureSharedBytes(const void* kernel, const LaunchShape& shape) {
  if (shape.smem_bytes <= kDefaultSharedBytes - kMostStaticBytes) return;
  int device = 0;
  cudaGetDevice(&device);
  internal::shared_bytes_limits.Ensure(kernel, device, shape.smem_bytes,
                                       [&] { AllowSharedBytes(kernel, device, shape); });
}
#endif

// Launches the kernel. Asynchronous on the device, unless launches are checked (launch_check.h).
// The emulator returns after the kernel has ended, and throws the errors that it found.
template <typename... P, typename... A>
void Launch(const LaunchShape& shape, [[maybe_unused]] cudaStream_t stream, void (*kernel)(P...),
            A&&... args) {
  CheckLaunchShape(shape);
#if HL_EMULATE
  emu::Run(shape.grid, shape.block, shape.smem_bytes, shape.name,
           [&] { kernel(static_cast<P>(args)...); });
#else
  EnsureSharedBytes(reinterpret_cast<const void*>(kernel), shape);
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.smem_bytes);
  config.stream = stream;
  const bool checked = LaunchesAreChecked();
  if (checked) AwaitChecked(shape, stream, "what was queued before this kernel");
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...);
  HL_CHECK(status == cudaSuccess, shape.name, ": launch of ", shape.grid.x, " x ", shape.grid.y,
           " x ", shape.grid.z, " blocks of ", shape.block.x, " x ", shape.block.y, " x ",
           shape.block.z, " threads: ", cudaGetErrorString(status));
  if (checked) AwaitChecked(shape, stream, "the kernel");
#endif
}

// ---- shared memory ----

// Divides dynamic shared memory into arrays. Every thread must make the same Take() calls in the
// same order, and a kernel must always use the same layout: the emulator puts a poisoned KiB after
// each array and compares the sum with LaunchShape::smem_bytes.
//
//   HL_DYNAMIC_SMEM(smem);
//   SmemCarver carver(smem);
//   bf16* const q = carver.Take<bf16>(64 * 128);
//   bf16* const tile = carver.Take<bf16, 1024>(64 * 64);  // aligned to 1024 bytes
class SmemCarver {
 public:
  HL_DEVICE explicit SmemCarver(unsigned char* smem) : base_(smem) {}

  template <typename T, int kAlign = 16>
  HL_DEVICE T* Take(int count HL_LOC) {
    static_assert(kAlign >= static_cast<int>(alignof(T)) && (kAlign & (kAlign - 1)) == 0);
    used_ = (used_ + kAlign - 1) & ~(kAlign - 1);
    const int begin = used_;
    used_ += count * static_cast<int>(sizeof(T));
#if HL_EMULATE
    return reinterpret_cast<T*>(emu::Carve(base_, begin, used_ - begin, kAlign, index_++, where));
#else
    return reinterpret_cast<T*>(base_ + begin);
#endif
  }
  // Returns the bytes of LaunchShape::smem_bytes that the arrays so far need.
  HL_DEVICE int used_bytes() const { return used_; }

 private:
  unsigned char* base_;
  int used_ = 0;
#if HL_EMULATE
  int index_ = 0;
#endif
};

// Returns the 32-bit address in the shared window that PTX needs; in the emulator, the offset from
// the dynamic base.
HL_DEVICE uint32_t SmemAddress(const void* smem) {
#if HL_EMULATE
  return emu::SharedOffset(smem);
#else
  return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
#endif
}

// ---- conversions ----

HL_DEVICE float ToFloat(bf16 x) { return __bfloat162float(x); }
HL_DEVICE float ToFloat(float x) { return x; }
HL_DEVICE bf16 ToBf16(float x) { return __float2bfloat16_rn(x); }  // to nearest even

// Packs two bf16 into a register, `lo` in the lower half. `lo` is the lower column of a fragment.
HL_DEVICE uint32_t PackBf16(float lo, float hi) {
#if HL_EMULATE
  return emu::Bf16Bits(lo) | (static_cast<uint32_t>(emu::Bf16Bits(hi)) << 16);
#else
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
#endif
}
HL_DEVICE float UnpackLo(uint32_t packed) { return __uint_as_float(packed << 16); }
HL_DEVICE float UnpackHi(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

// Returns the bits of x rounded to TF32 (10 bits of mantissa), ties away from zero.
HL_DEVICE uint32_t ToTf32(float x) {
#if HL_EMULATE
  return emu::Tf32Bits(x);
#else
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#endif
}

inline constexpr float kLog2E = 1.44269504088896341f;

// Returns 2^x to about 2 ulp. Subnormal results are flushed to zero; -inf gives 0. The emulator
// uses libm.
HL_DEVICE float Exp2Approx(float x) {
#if HL_EMULATE
  return emu::Exp2Flushed(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// ---- tensor cores: lane = 4 g + t ----

// d += a b for one warp: a [16, 16] and b [16, 8] bf16, d [16, 8] fp32.
//   a[0] (row g, k 2t..2t+1)  a[1] (g+8, 2t..)  a[2] (g, 2t+8..)  a[3] (g+8, 2t+8..)
//   b[0] (k 2t..2t+1, n g)    b[1] (k 2t+8.., n g)
//   d[0] d[1] (row g, n 2t, 2t+1)   d[2] d[3] (g+8, same)
HL_DEVICE void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] HL_LOC) {
#if HL_EMULATE
  emu::WarpMmaBf16(d, a, b, where);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// d += a b for one warp: a [16, 8] and b [8, 8] TF32 (ToTf32), d [16, 8] fp32 as above.
//   a[0] (row g, k t)  a[1] (g+8, t)  a[2] (g, t+4)  a[3] (g+8, t+4)
//   b[0] (k t, n g)  b[1] (k t+4, n g)
HL_DEVICE void MmaTf32M16N8K8(float (&d)[4], const uint32_t (&a)[4],
                              const uint32_t (&b)[2] HL_LOC) {
#if HL_EMULATE
  emu::WarpMmaTf32(d, a, b, where);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l passes the address of row
// l % 8 of matrix l / 8 (16 bytes, aligned). r[i] of lane l receives matrix i, row l / 4, columns 2
// (l % 4) and + 1; with kTrans, of the transposed matrix.
template <bool kTrans>
HL_DEVICE void LdMatrixX4(uint32_t (&r)[4], const void* row HL_LOC) {
#if HL_EMULATE
  emu::WarpLdMatrixX4(r, row, kTrans, where);
#else
  const uint32_t address = SmemAddress(row);
  if (kTrans) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// ---- asynchronous copies of the calling thread ----

// Copies 16 bytes from global to shared memory, both aligned to 16. If not `valid`, writes zeros
// and does not read `global` (which must still point into an allocation). The target must be
// neither read nor written until a CpAsyncWait has covered the copy.
HL_DEVICE void CpAsync16(void* smem, const void* global, bool valid HL_LOC) {
#if HL_EMULATE
  emu::CopyAsync(smem, global, 16, valid, where);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SmemAddress(smem)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
#endif
}

// The same for 4 bytes, for rows whose size is not a multiple of 16.
HL_DEVICE void CpAsync4(void* smem, const void* global, bool valid HL_LOC) {
#if HL_EMULATE
  emu::CopyAsync(smem, global, 4, valid, where);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SmemAddress(smem)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 4 : 0)
               : "memory");
#endif
}

// Closes the group of copies issued since the last commit. An empty group counts too.
HL_DEVICE void CpAsyncCommit(HL_LOC_ONLY) {
#if HL_EMULATE
  emu::CopyAsyncCommit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all but the last kPending groups of this thread have arrived. Other threads see the
// data after a barrier.
template <int kPending>
HL_DEVICE void CpAsyncWait(HL_LOC_ONLY) {
  static_assert(kPending >= 0);
#if HL_EMULATE
  emu::CopyAsyncWait(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// ---- barriers and warps ----

// Barrier for `threads` threads of the block, a multiple of 32. kId is 1 to 15, because 0 is
// __syncthreads().
template <int kId>
HL_DEVICE void NamedBarrierSync(int threads HL_LOC) {
  static_assert(kId >= 1 && kId <= 15);
#if HL_EMULATE
  emu::NamedBarrier(kId, threads, /*wait=*/true, where);
#else
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "r"(threads) : "memory");
#endif
}

// Arrives at the barrier without waiting.
template <int kId>
HL_DEVICE void NamedBarrierArrive(int threads HL_LOC) {
  static_assert(kId >= 1 && kId <= 15);
#if HL_EMULATE
  emu::NamedBarrier(kId, threads, /*wait=*/false, where);
#else
  asm volatile("bar.arrive %0, %1;" ::"n"(kId), "r"(threads) : "memory");
#endif
}

// For one-dimensional blocks.
HL_DEVICE int LaneId() { return static_cast<int>(threadIdx.x) % 32; }
HL_DEVICE int WarpId() { return static_cast<int>(threadIdx.x) / 32; }

// Sum and maximum over the warp, with the same bits in every lane. All 32 lanes must take part.
HL_DEVICE float WarpSum(float x HL_LOC) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
#if HL_EMULATE
    x += __shfl_xor_sync(kFullWarp, x, offset, 32, where);
#else
    x += __shfl_xor_sync(kFullWarp, x, offset);
#endif
  }
  return x;
}
HL_DEVICE float WarpMax(float x HL_LOC) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
#if HL_EMULATE
    x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset, 32, where));
#else
    x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
#endif
  }
  return x;
}

// The size of a launch's grid if it depends on data.
//
//   Launch({GridBlocks((rows + 127) / 128, "row sum"), 128, 0, "row sum"}, stream, Sum, x, out);
//
// Returns `blocks` as the x dimension of a grid, which has 32 bits. A count of rows or elements may
// exceed that.
inline unsigned GridBlocks(int64_t blocks, const char* name) {
  constexpr int64_t kMax = 0x7fffffff;
  HL_CHECK_AS(ExitCode::kUsage, blocks <= kMax, name, ": ", blocks, " blocks exceed the limit of ",
              kMax, " per launch. Split the batch.");
  return static_cast<unsigned>(blocks);
}

}  // namespace halflife::kernels
