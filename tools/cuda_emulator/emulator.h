// Runs CUDA kernels on the CPU. When g++ compiles a kernel source with HL_EMULATE, this header
// provides CUDA's built-in variables and functions and the bodies of the wrappers in device.h. Each
// CUDA thread is a fiber. A fiber yields only at a barrier, a warp collective or an mbarrier wait.
// kernels/common/cuda/device.h includes this file; kernels include only device.h.
//
// Environment variables:
//   HL_EMU_ORDER    which ready thread of a block runs next: forward (the lowest, default), reverse
//                   (the highest) or random
//   HL_EMU_SEED     seed of the random order, at least 1 (default 1)
//   HL_EMU_TRACK    0 turns the tracker of accesses to shared memory off (tracker.cc; default 1)
//   HL_EMU_WORKERS  number of OS threads that run blocks, at least 1 (default: the number of
//                   processors, at most 8)
//
// Errors of a kernel are thrown from Launch, in the host thread, as halflife::Error.
#pragma once

#include <crt/host_defines.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

// The emulator sets these after each switch of fibers. They are variables, not macros, because some
// structs of CUDA have members with these names.
extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread dim3 blockDim;
extern __thread dim3 gridDim;
inline constexpr int warpSize = 32;

namespace halflife::kernels::emu {

using Place = std::source_location;

// Runs `body` once per thread of the grid. Throws the first error.
void RunErased(dim3 grid, dim3 block, int smem_bytes, const char* name, void (*body)(void*),
               void* argument);
template <typename Body>
void Run(dim3 grid, dim3 block, int smem_bytes, const char* name, const Body& body) {
  RunErased(
      grid, block, smem_bytes, name, [](void* b) { (*static_cast<const Body*>(b))(); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// Ends the launch with an error that names the thread and the source line.
[[noreturn]] void FailAt(Place place, const char* message);

// ---- shared memory: every byte is 0xFF when a block starts ----
unsigned char* DynamicShared();
void* StaticSharedErased(const void* key, size_t bytes, size_t align);
template <typename T>
T& StaticShared(const void* key) {
  return *static_cast<T*>(StaticSharedErased(key, sizeof(T), alignof(T)));
}
// Registers cut `index` of a SmemCarver, which is bytes [begin, begin + bytes) of the device's
// layout. Returns the address of the cut in the emulator, where red zones separate the cuts.
unsigned char* Carve(unsigned char* base, int begin, int bytes, int align, int index, Place place);
uint32_t SharedOffset(const void* smem);

// ---- the bodies of the wrappers in device.h ----
uint32_t Bf16Bits(float x);
uint32_t Tf32Bits(float x);
float Exp2Flushed(float x);
void WarpMmaBf16(float* d, const uint32_t* a, const uint32_t* b, Place place);
void WarpMmaTf32(float* d, const uint32_t* a, const uint32_t* b, Place place);
void WarpLdMatrixX4(uint32_t* r, const void* row, bool trans, Place place);
void CopyAsync(void* smem, const void* global, int bytes, bool valid, Place place);
void CopyAsyncCommit();
void CopyAsyncWait(int pending);
void BlockBarrier(Place place);
void NamedBarrier(int id, int threads, bool wait, Place place);

// ---- the bodies of the wrappers in device90.h ----
struct TensorMap {
  const unsigned char* data;
  int64_t num_rows, num_cols, row_bytes;
  int element_bytes, box_rows, box_cols;
};
void MbarrierInit(const void* barrier, int count, Place place);
void MbarrierArrive(const void* barrier, int expected_bytes, Place place);
void MbarrierWait(const void* barrier, uint32_t parity, Place place);
void TmaLoad2d(void* smem, const TensorMap& map, const void* barrier, int col, int row,
               Place place);
void BulkLoad(void* smem, const void* source, int bytes, const void* barrier, Place place);
void FenceProxyAsync();
uint64_t TileDescriptor(const void* smem, Place place);
void WgmmaFence();
void WgmmaCommit();
void WgmmaWait(int pending, Place place);
void WgmmaShared(float* d, uint64_t desc_a, uint64_t desc_b, Place place);
void WgmmaRegisters(float* d, const uint32_t* a, uint64_t desc_b, Place place);
void WgmmaRegistersOfRows(float* d, const uint32_t* a, uint64_t desc_b, Place place);

// ---- warp collectives ----
enum class Shuffle { kIndex, kUp, kDown, kXor };
enum class Vote { kBallot, kAny, kAll };
uint64_t WarpShuffle(Shuffle kind, unsigned mask, uint64_t bits, int operand, int width,
                     Place place);
unsigned WarpVote(Vote kind, unsigned mask, bool predicate, Place place);
void WarpBarrier(unsigned mask, Place place);
void Fence();
void Yield();  // Lets all other ready threads of the block run. For wrappers that poll memory.

template <typename T>
T ShuffleValue(Shuffle kind, unsigned mask, T value, int operand, int width, Place place) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, static_cast<const void*>(&value), sizeof(T));
  bits = WarpShuffle(kind, mask, bits, operand, width, place);
  __builtin_memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

}  // namespace halflife::kernels::emu

// ---- CUDA's own names ----

#define HL_EMU_PLACE halflife::kernels::emu::Place place = halflife::kernels::emu::Place::current()

inline void __syncthreads(HL_EMU_PLACE) { halflife::kernels::emu::BlockBarrier(place); }
inline void __syncwarp(unsigned mask = 0xffffffffu, HL_EMU_PLACE) {
  halflife::kernels::emu::WarpBarrier(mask, place);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, HL_EMU_PLACE) {
  using halflife::kernels::emu::Shuffle;
  return halflife::kernels::emu::ShuffleValue(Shuffle::kIndex, mask, value, lane, width, place);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32, HL_EMU_PLACE) {
  using halflife::kernels::emu::Shuffle;
  return halflife::kernels::emu::ShuffleValue(Shuffle::kUp, mask, value, delta, width, place);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32, HL_EMU_PLACE) {
  using halflife::kernels::emu::Shuffle;
  return halflife::kernels::emu::ShuffleValue(Shuffle::kDown, mask, value, delta, width, place);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, HL_EMU_PLACE) {
  using halflife::kernels::emu::Shuffle;
  return halflife::kernels::emu::ShuffleValue(Shuffle::kXor, mask, value, lane_mask, width, place);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, HL_EMU_PLACE) {
  using namespace halflife::kernels::emu;
  return WarpVote(Vote::kBallot, mask, predicate != 0, place);
}
inline int __any_sync(unsigned mask, int predicate, HL_EMU_PLACE) {
  using namespace halflife::kernels::emu;
  return static_cast<int>(WarpVote(Vote::kAny, mask, predicate != 0, place));
}
inline int __all_sync(unsigned mask, int predicate, HL_EMU_PLACE) {
  using namespace halflife::kernels::emu;
  return static_cast<int>(WarpVote(Vote::kAll, mask, predicate != 0, place));
}
[[noreturn]] inline void __trap(HL_EMU_PLACE) { halflife::kernels::emu::FailAt(place, "__trap"); }

inline void __threadfence() { halflife::kernels::emu::Fence(); }
inline void __threadfence_block() { halflife::kernels::emu::Fence(); }
inline void __threadfence_system() { halflife::kernels::emu::Fence(); }
inline void __nanosleep(unsigned) { halflife::kernels::emu::Yield(); }

// These atomics are stronger than CUDA's relaxed ones, so the emulator does not find a missing
// fence next to them.
template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_acq_rel);
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).exchange(value, std::memory_order_acq_rel);
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, value, std::memory_order_acq_rel);
  return expected;
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  std::atomic_ref<T> cell(*address);
  T old = cell.load(std::memory_order_acquire);
  while (old < value && !cell.compare_exchange_weak(old, value, std::memory_order_acq_rel)) {
  }
  return old;
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline constexpr int min(int a, int b) { return b < a ? b : a; }
inline constexpr int max(int a, int b) { return a < b ? b : a; }
inline constexpr unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline constexpr unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline constexpr long min(long a, long b) { return b < a ? b : a; }
inline constexpr long max(long a, long b) { return a < b ? b : a; }
inline constexpr long long min(long long a, long long b) { return b < a ? b : a; }
inline constexpr long long max(long long a, long long b) { return a < b ? b : a; }
inline constexpr unsigned long min(unsigned long a, unsigned long b) { return b < a ? b : a; }
inline constexpr unsigned long max(unsigned long a, unsigned long b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }  // as in CUDA: ignores a NaN
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
// glibc declares these two functions for internal use but does not export them.
extern "C" inline float __expf(float x) noexcept { return expf(x); }
extern "C" inline float __logf(float x) noexcept { return logf(x); }

#undef HL_EMU_PLACE
