// Shared code of the elementwise and row-wise kernels: 16-byte accesses with a scalar fallback for
// unaligned memory, sums over the threads of a row, and exponentials. Arithmetic is fp32 for every
// storage type.
//
//   float x[kPack<T>];
//   Load(row + c, dim - c, aligned, x);  // elements c .. c + kPack - 1, zeros past a row's end
//   Store(out + c, dim - c, aligned, x);
//
// `aligned` (computed by Aligned16 on the host) means that every pack of every row is complete and
// starts at a multiple of 16 bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/cuda/device.h"
#include "kernels/common/host_device.h"
#include "kernels/common/sum_partials.h"

namespace halflife::kernels::rows {

// Number of elements of T in 16 bytes.
template <typename T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

inline bool IsAligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}
// Returns true if rows of `dim` elements at these addresses allow 16-byte accesses. Null counts as
// aligned.
template <typename T, typename... Pointers>
bool Aligned16(int64_t dim, const Pointers*... pointers) {
  return dim % kPack<T> == 0 && (IsAligned16(pointers) && ...);
}

// ---- storage ----

HL_DEVICE float FromStorage(float x) { return x; }
HL_DEVICE float FromStorage(Bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }

template <typename T>
HL_DEVICE T Narrow(float x);
template <>
HL_DEVICE float Narrow<float>(float x) {
  return x;
}
template <>
HL_DEVICE Bf16 Narrow<Bf16>(float x) {
  return {static_cast<uint16_t>(PackBf16(x, 0.0f))};
}

HL_DEVICE void Unpack(uint4 words, float (&x)[4]) {
  x[0] = __uint_as_float(words.x), x[1] = __uint_as_float(words.y);
  x[2] = __uint_as_float(words.z), x[3] = __uint_as_float(words.w);
}
HL_DEVICE void Unpack(uint4 words, float (&x)[8]) {
  x[0] = UnpackLo(words.x), x[1] = UnpackHi(words.x);
  x[2] = UnpackLo(words.y), x[3] = UnpackHi(words.y);
  x[4] = UnpackLo(words.z), x[5] = UnpackHi(words.z);
  x[6] = UnpackLo(words.w), x[7] = UnpackHi(words.w);
}
HL_DEVICE uint4 Packed(const float (&x)[4]) {
  return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                    __float_as_uint(x[3]));
}
HL_DEVICE uint4 Packed(const float (&x)[8]) {
  return make_uint4(PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]),
                    PackBf16(x[6], x[7]));
}

// Sets x[i] = from[i] for i < count, and 0 for the rest. If kWidth is not kPack<T>, loads element
// by element.
template <typename T, int kWidth>
HL_DEVICE void Load(const T* from, int count, bool aligned, float (&x)[kWidth]) {
  if constexpr (kWidth == kPack<T>) {
    if (aligned && count >= kWidth) {
      Unpack(*reinterpret_cast<const uint4*>(from), x);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] = i < count ? FromStorage(from[i]) : 0.0f;
}

// Sets to[i] = x[i] for i < count.
template <typename T, int kWidth>
HL_DEVICE void Store(T* to, int count, bool aligned, const float (&x)[kWidth]) {
  if constexpr (kWidth == kPack<T>) {
    if (aligned && count >= kWidth) {
      *reinterpret_cast<uint4*>(to) = Packed(x);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (i < count) to[i] = Narrow<T>(x[i]);
}

// Loads fp32 values for a pack of T, such as weights and partial sums: two 16-byte accesses if the
// pack has 8 elements.
template <int kWidth>
HL_DEVICE void LoadFloats(const float* from, int count, bool aligned, float (&x)[kWidth]) {
  static_assert(kWidth % 4 == 0);
  if (aligned && count >= kWidth) {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const float4 part = *reinterpret_cast<const float4*>(from + i);
      x[i] = part.x, x[i + 1] = part.y, x[i + 2] = part.z, x[i + 3] = part.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] = i < count ? from[i] : 0.0f;
}

// Sets to[i] = x[i] for i < count: fp32 results for a pack of T.
template <int kWidth>
HL_DEVICE void StoreFloats(float* to, int count, bool aligned, const float (&x)[kWidth]) {
  static_assert(kWidth % 4 == 0);
  if (aligned && count >= kWidth) {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4)
      *reinterpret_cast<float4*>(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (i < count) to[i] = x[i];
}

// ---- functions ----

// 1 / (1 + e^-x) to a few ulp; 0 and 1 at the infinities.
HL_DEVICE float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// ---- the threads of a row ----

constexpr int kRowThreads = 512;    // maximum for a block with one row
constexpr int kGroupThreads = 128;  // for a block with several rows
constexpr int kMaxRowWarps = kRowThreads / 32;

// How the threads of a block are divided among rows: `lanes` threads per row. Below a warp, `lanes`
// is a power of two; above, it is a number of whole warps, and the block has one row.
struct RowShape {
  int lanes, rows_per_block;
  int threads() const { return lanes * rows_per_block; }
};
template <typename T>
RowShape RowShapeOf(int64_t dim) {
  const int64_t packs = (dim + kPack<T> - 1) / kPack<T>;
  if (packs > 32) {
    const int64_t warps = std::min<int64_t>(kMaxRowWarps, (packs + 31) / 32);
    return {static_cast<int>(32 * warps), 1};
  }
  int lanes = 1;
  while (lanes < packs) lanes *= 2;
  return {lanes, kGroupThreads / lanes};
}

// Launch parameters in addition to the kernel's arguments.
struct Schedule {
  int lanes, rows_per_block;
  bool aligned;  // true: every row allows 16-byte accesses
};

// The work of a thread on a row: packs that start at `column`, + step, ...
template <typename T>
struct RowPlace {
  HL_DEVICE RowPlace(const Schedule& schedule, int64_t dim_in)
      : group(static_cast<int>(threadIdx.x) / schedule.lanes),
        column(static_cast<int>(threadIdx.x) % schedule.lanes * kPack<T>),
        dim(static_cast<int>(dim_in)),
        step(schedule.lanes * kPack<T>),
        once(step >= dim) {}
  // In a grid of one block per `rows_per_block` rows.
  HL_DEVICE int64_t row(const Schedule& schedule) const {
    return int64_t{1} * blockIdx.x * schedule.rows_per_block + group;
  }
  int group;  // number of the thread's row in the block
  int column, dim, step;
  bool once;  // true: at most one pack, which can stay in registers between passes over the row
};

// Columns are counted in 32 bits.
inline void CheckRowDim(const char* name, int64_t dim) {
  constexpr int64_t kMaxDim = int64_t{1} << 30;
  HL_CHECK(dim <= kMaxDim, name, " over ", dim, " channels. Use at most ", kMaxDim, ".");
}

// Launches a kernel with one block per rows_per_block rows, for each of num_parts parts.
template <typename T, typename Args>
void LaunchRows(const char* name, void (*kernel)(Args, Schedule), const Args& args, int num_parts,
                bool aligned, cudaStream_t stream) {
  if (args.num_rows == 0 || args.dim == 0 || num_parts == 0) return;
  CheckRowDim(name, args.dim);
  const RowShape shape = RowShapeOf<T>(args.dim);
  const int64_t blocks = (args.num_rows + shape.rows_per_block - 1) / shape.rows_per_block;
  Launch({dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(num_parts)),
          dim3(shape.threads()), 0, name},
         stream, kernel, args, Schedule{shape.lanes, shape.rows_per_block, aligned});
}

// Returns the sum of x over the threads of each row, with the same bits in all of them. All threads
// of the block must take part. `partial` is in shared memory and may be reused after a barrier.
HL_DEVICE float RowSum(float x, int lanes, float (&partial)[kMaxRowWarps]) {
  if (lanes <= 32) {
    for (int offset = lanes / 2; offset > 0; offset /= 2)
      x += __shfl_xor_sync(kFullWarp, x, offset);
    return x;
  }
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < lanes / 32; ++warp) sum += partial[warp];
  return sum;
}

// ---- blocks of columns ----

// Kernels that keep the parameters of their columns in registers have blocks of 32 columns, or
// packs of adjacent columns, x 8 rows. In a forward, a thread loads the parameters once for 4 rows.
constexpr int kColumnLanes = 32, kBlockRows = static_cast<int>(cuda::kPartialRows);
constexpr int kColumnThreads = kColumnLanes * kBlockRows;
constexpr int64_t kForwardRows = 4 * kBlockRows;  // rows of a block
constexpr int64_t kMostRowBlocks = 65535;         // limit of a grid's second dimension

// The number of blocks of columns if a thread has `width` of them.
HL_EVERYWHERE constexpr int64_t ColumnBlocks(int64_t num_columns, int width = 1) {
  const int64_t of_block = int64_t{kColumnLanes} * width;
  return (num_columns + of_block - 1) / of_block;
}

// The work of a thread in block `block` of the columns: its first column, how many columns of its
// pack exist, and its row in the block.
template <typename T>
struct ColumnPlace {
  HL_DEVICE ColumnPlace(int64_t block, int64_t num_columns)
      : column((kColumnLanes * block + threadIdx.x % kColumnLanes) * kPack<T>),
        count(static_cast<int>(min(max(num_columns - column, int64_t{0}), int64_t{kPack<T>}))),
        row(static_cast<int>(threadIdx.x) / kColumnLanes) {}
  // For blocks that stride over the rows.
  HL_DEVICE int64_t first_row() const { return int64_t{kBlockRows} * blockIdx.y + row; }
  HL_DEVICE static int64_t row_stride() { return int64_t{kBlockRows} * gridDim.y; }
  int64_t column;
  int count, row;
};

// Adds up the columns of the rows of a block in order; the threads of the first row store the sums.
// Only `count` of a thread's kWidth columns exist. A barrier is required between two calls.
template <int kWidth>
HL_DEVICE void StoreColumnSums(const float (&sum)[kWidth], float* to, int count) {
  HL_SHARED(sums, float[kColumnThreads * kWidth]);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[threadIdx.x * kWidth + i] = sum[i];
  __syncthreads();
  if (threadIdx.x >= kColumnLanes) return;
  for (int i = 0; i < count; ++i) {
    float total = 0;
    for (int row = 0; row < kBlockRows; ++row)
      total += sums[(row * kColumnLanes + threadIdx.x) * kWidth + i];
    to[i] = total;
  }
}

}  // namespace halflife::kernels::rows
