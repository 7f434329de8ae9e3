#include "kernels/common/cuda/rows.cuh"
#include "kernels/rows/real_norm_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// The work of a thread: packs of its row that start at `column`, + step, ...
template <typename T>
struct Place {
  HL_DEVICE Place(const Schedule& schedule, int64_t dim_in, int64_t num_rows)
      : row(int64_t{1} * blockIdx.x * schedule.rows_per_block +
            static_cast<int>(threadIdx.x) / schedule.lanes),
        valid(row < num_rows),
        column(static_cast<int>(threadIdx.x) % schedule.lanes * kPack<T>),
        dim(static_cast<int>(dim_in)),
        step(schedule.lanes * kPack<T>) {}
  int64_t row;
  bool valid;
  int column, dim, step;
};

// Grid: blocks of rows. Makes three passes over a row, which stays in the L1 cache: mean,
// deviation, output.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    RealNormForwardKernel(RealNormRows<T> args, Schedule schedule) {
  HL_SHARED(partial, float[2][kMaxRowWarps]);
  const Place<T> place(schedule, args.dim, args.num_rows);
  const T* const x_row = args.x + place.row * args.dim;
  float x[kPack<T>];
  float sum = 0, squares = 0;
  for (int c = place.column; place.valid && c < place.dim; c += place.step) {
    Load(x_row + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sum += x[i];  // zeros past the end
  }
  const float mean = RowSum(sum, schedule.lanes, partial[0]) / static_cast<float>(place.dim);
  for (int c = place.column; place.valid && c < place.dim; c += place.step) {
    Load(x_row + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i)
      if (c + i < place.dim) squares += (x[i] - mean) * (x[i] - mean);
  }
  squares = RowSum(squares, schedule.lanes, partial[1]);
  if (!place.valid) return;
  const RealNormScale scale = RealNormScale::Of(squares, args.dim, args.eps);
  if (place.column == 0) args.factor[place.row] = scale.factor, args.slope[place.row] = scale.slope;
  for (int c = place.column; c < place.dim; c += place.step) {
    Load(x_row + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x[i] = (x[i] - mean) * scale.factor;
    StoreFloats(args.out + place.row * args.dim + c, place.dim - c, schedule.aligned, x);
  }
}

// Grid: blocks of rows. Makes two passes over a row: its sums, then dx.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    RealNormBackwardKernel(RealNormGradRows<T> args, Schedule schedule) {
  HL_SHARED(partial, float[2][kMaxRowWarps]);
  const Place<T> place(schedule, args.dim, args.num_rows);
  const int64_t begin = place.row * args.dim;
  float y[kPack<T>], dy[kPack<T>];
  float sum = 0, dot = 0;
  for (int c = place.column; place.valid && c < place.dim; c += place.step) {
    LoadFloats(args.out + begin + c, place.dim - c, schedule.aligned, y);
    LoadFloats(args.dout + begin + c, place.dim - c, schedule.aligned, dy);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sum += dy[i], dot += dy[i] * y[i];
  }
  const float mean = RowSum(sum, schedule.lanes, partial[0]) / static_cast<float>(place.dim);
  dot = RowSum(dot, schedule.lanes, partial[1]);
  if (!place.valid) return;
  const float factor = args.factor[place.row], along = dot * args.slope[place.row];
  for (int c = place.column; c < place.dim; c += place.step) {
    LoadFloats(args.out + begin + c, place.dim - c, schedule.aligned, y);
    LoadFloats(args.dout + begin + c, place.dim - c, schedule.aligned, dy);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) dy[i] = factor * (dy[i] - mean - y[i] * along);
    Store(args.dx + begin + c, place.dim - c, schedule.aligned, dy);
  }
}

// Launches blocks of rows over num_rows rows of `dim`; there must be at least one row.
template <typename T, typename Args>
void LaunchRows(const char* name, void (*kernel)(Args, Schedule), const Args& args, bool aligned,
                cudaStream_t stream) {
  if (args.num_rows == 0) return;
  constexpr int64_t kMaxDim = int64_t{1} << 30;  // columns are counted in 32 bits
  HL_CHECK(args.dim <= kMaxDim, name, " over ", args.dim, " channels. Use at most ", kMaxDim, ".");
  const RowShape shape = RowShapeOf<T>(args.dim);
  const int64_t blocks = (args.num_rows + shape.rows_per_block - 1) / shape.rows_per_block;
  Launch({dim3(static_cast<unsigned>(blocks)), dim3(shape.threads()), 0, name}, stream, kernel,
         args, Schedule{shape.lanes, shape.rows_per_block, aligned});
}

}  // namespace

namespace cuda {

template <typename T>
void RealNormForward(const RealNormRows<T>& args, cudaStream_t stream) {
  LaunchRows<T>("standardising", RealNormForwardKernel<T>, args,
                Aligned16<T>(args.dim, args.x, args.out), stream);
}
template <typename T>
void RealNormBackward(const RealNormGradRows<T>& args, cudaStream_t stream) {
  LaunchRows<T>("standardising's gradient", RealNormBackwardKernel<T>, args,
                Aligned16<T>(args.dim, args.out, args.dout, args.dx), stream);
}

template void RealNormForward(const RealNormRows<float>&, cudaStream_t);
template void RealNormForward(const RealNormRows<Bf16>&, cudaStream_t);
template void RealNormBackward(const RealNormGradRows<float>&, cudaStream_t);
template void RealNormBackward(const RealNormGradRows<Bf16>&, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
