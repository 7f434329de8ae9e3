#include "core/float8.h"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/rows/float8_rows_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// Returns the maximum of x over the threads of each row. All threads of the block must take part.
HL_DEVICE float RowMax(float x, int lanes, float (&partial)[kMaxRowWarps]) {
  if (lanes <= 32) {
    for (int offset = lanes / 2; offset > 0; offset /= 2)
      x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
    return x;
  }
  x = WarpMax(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  for (int warp = 0; warp < lanes / 32; ++warp) x = fmaxf(x, partial[warp]);
  return x;
}

// Returns the magnitude of x, or infinity if x is a NaN, which fmaxf would ignore.
HL_DEVICE float OrderedMagnitude(float x) {
  const uint32_t magnitude = __float_as_uint(x) & 0x7fffffff;
  return __uint_as_float(magnitude > 0x7f800000 ? 0x7f800000u : magnitude);
}

HL_DEVICE uint32_t FourCodes(const float* x, float scale) {
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    codes |= uint32_t{EncodeE4m3(__float_as_uint(x[i] * scale))} << (8 * i);
  return codes;
}

// Grid: blocks of rows. Makes two passes over a row: its largest magnitude, then the codes. A row
// with at most one pack per thread is read once.
__global__ void __launch_bounds__(kRowThreads)
    ConvertToFloat8Kernel(Float8Rows args, Schedule schedule) {
  HL_SHARED(partial, float[kMaxRowWarps]);
  constexpr int kWidth = kPack<Bf16>;
  const int64_t row = int64_t{1} * blockIdx.x * schedule.rows_per_block +
                      static_cast<int>(threadIdx.x) / schedule.lanes;
  const bool valid = row < args.num_rows;
  const int width = static_cast<int>(args.width), step = schedule.lanes * kWidth,
            column = static_cast<int>(threadIdx.x) % schedule.lanes * kWidth;
  const Bf16* const from = args.x + row * args.x_stride;
  float x[kWidth];
  float largest = 0;
  for (int c = column; valid && c < width; c += step) {
    Load(from + c, width - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, OrderedMagnitude(x[i]));
  }
  largest = RowMax(largest, schedule.lanes, partial);
  if (!valid) return;
  const uint32_t scale_bits = Float8ScaleBits(__float_as_uint(largest));
  const float scale = __uint_as_float(scale_bits);
  if (column == 0) args.factors[row] = __uint_as_float(Float8FactorBits(scale_bits));
  uint8_t* const codes = args.codes + row * args.width;
  for (int c = column; c < width; c += step) {
    if (step < width) Load(from + c, width - c, schedule.aligned, x);
    const uint2 packed = make_uint2(FourCodes(x, scale), FourCodes(x + 4, scale));
    if (schedule.aligned) {
      *reinterpret_cast<uint2*>(codes + c) = packed;
      continue;
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (c + i < width)
        codes[c + i] = static_cast<uint8_t>((i < 4 ? packed.x : packed.y) >> (8 * (i % 4)));
  }
}

}  // namespace

namespace cuda {

void ConvertToFloat8(const Float8Rows& rows, cudaStream_t stream) {
  if (rows.num_rows == 0 || rows.width == 0) return;
  constexpr int64_t kMaxWidth = int64_t{1} << 30;  // columns are counted in 32 bits
  HL_CHECK(rows.width <= kMaxWidth, "FP8 rows of ", rows.width, " channels. Use at most ",
           kMaxWidth, ".");
  const bool aligned =
      Aligned16<Bf16>(rows.width, rows.x, rows.codes) && rows.x_stride % kPack<Bf16> == 0;
  const RowShape shape = RowShapeOf<Bf16>(rows.width);
  const int64_t blocks = (rows.num_rows + shape.rows_per_block - 1) / shape.rows_per_block;
  Launch({dim3(static_cast<unsigned>(blocks)), dim3(shape.threads()), 0, "FP8 rows"}, stream,
         ConvertToFloat8Kernel, rows, Schedule{shape.lanes, shape.rows_per_block, aligned});
}

}  // namespace cuda
}  // namespace halflife::kernels
