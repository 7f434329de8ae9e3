#include "kernels/common/cuda/rows.cuh"
#include "kernels/rows/unit_norm_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// The work of a thread: packs of its row that start at `column`, + step, ... `once`: it has at most
// one pack, which stays in registers between the passes over the row.
template <typename T>
struct Place {
  HL_DEVICE Place(const Schedule& schedule, int64_t dim_in, int64_t num_rows)
      : row(int64_t{1} * blockIdx.x * schedule.rows_per_block +
            static_cast<int>(threadIdx.x) / schedule.lanes),
        valid(row < num_rows),
        column(static_cast<int>(threadIdx.x) % schedule.lanes * kPack<T>),
        dim(static_cast<int>(dim_in)),
        step(schedule.lanes * kPack<T>),
        once(step >= dim) {}
  int64_t row;
  bool valid;
  int column, dim, step;
  bool once;
};

// Returns the part of the block. Not by a variable index, which would place the array in local
// memory.
template <typename Args>
HL_DEVICE auto PartOfBlock(const Args& args) {
  static_assert(kUnitNormParts == 2);
  return blockIdx.y == 0 ? args.parts[0] : args.parts[1];
}

// Grid: blocks of rows x parts. Makes two passes over a row: its squares, then the output.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    UnitNormForwardKernel(UnitNormArgs<T> args, Schedule schedule) {
  HL_SHARED(partial, float[kMaxRowWarps]);
  const Place<T> place(schedule, args.dim, args.num_rows);
  const auto part = PartOfBlock(args);
  const int64_t begin = place.row * args.dim;
  float x[kPack<T>];
  float squares = 0;
  for (int c = place.column; place.valid && c < place.dim; c += place.step) {
    Load(part.x + begin + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) squares += x[i] * x[i];  // zeros past the end
  }
  squares = RowSum(squares, schedule.lanes, partial);
  if (!place.valid) return;
  const float factor = 1.0f / sqrtf(squares + args.eps);
  if (place.column == 0) part.factor[place.row] = factor;
  for (int c = place.column; c < place.dim; c += place.step) {
    if (!place.once) Load(part.x + begin + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x[i] *= factor;
    Store(part.out + begin + c, place.dim - c, schedule.aligned, x);
  }
}

// Grid: blocks of rows x parts. Makes two passes over a row: its dot product, then dx.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    UnitNormBackwardKernel(UnitNormGradArgs<T> args, Schedule schedule) {
  HL_SHARED(partial, float[kMaxRowWarps]);
  const Place<T> place(schedule, args.dim, args.num_rows);
  const auto part = PartOfBlock(args);
  const int64_t begin = place.row * args.dim;
  float y[kPack<T>], dy[kPack<T>];
  float dot = 0;
  for (int c = place.column; place.valid && c < place.dim; c += place.step) {
    Load(part.out + begin + c, place.dim - c, schedule.aligned, y);
    Load(part.dout + begin + c, place.dim - c, schedule.aligned, dy);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) dot += dy[i] * y[i];
  }
  dot = RowSum(dot, schedule.lanes, partial);
  if (!place.valid) return;
  const float factor = part.factor[place.row];
  for (int c = place.column; c < place.dim; c += place.step) {
    if (!place.once) {
      Load(part.out + begin + c, place.dim - c, schedule.aligned, y);
      Load(part.dout + begin + c, place.dim - c, schedule.aligned, dy);
    }
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) dy[i] = factor * (dy[i] - y[i] * dot);
    Store(part.dx + begin + c, place.dim - c, schedule.aligned, dy);
  }
}

// Launches blocks of rows for every part.
template <typename T, typename Args>
void LaunchUnitRows(const char* name, void (*kernel)(Args, Schedule), const Args& args,
                    bool aligned, cudaStream_t stream) {
  if (args.num_rows == 0 || args.num_parts == 0) return;
  constexpr int64_t kMaxDim = int64_t{1} << 30;  // columns are counted in 32 bits
  HL_CHECK(args.dim <= kMaxDim, name, " over ", args.dim, " channels. Use at most ", kMaxDim, ".");
  const RowShape shape = RowShapeOf<T>(args.dim);
  const int64_t blocks = (args.num_rows + shape.rows_per_block - 1) / shape.rows_per_block;
  Launch({dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(args.num_parts)),
          dim3(shape.threads()), 0, name},
         stream, kernel, args, Schedule{shape.lanes, shape.rows_per_block, aligned});
}

}  // namespace

namespace cuda {

template <typename T>
void UnitNormForward(const UnitNormArgs<T>& args, cudaStream_t stream) {
  bool aligned = true;
  for (const UnitNormPart<T>& part : args.parts)
    aligned = aligned && Aligned16<T>(args.dim, part.x, part.out);
  LaunchUnitRows<T>("unit norm", UnitNormForwardKernel<T>, args, aligned, stream);
}
template <typename T>
void UnitNormBackward(const UnitNormGradArgs<T>& args, cudaStream_t stream) {
  bool aligned = true;
  for (const UnitNormGradPart<T>& part : args.parts)
    aligned = aligned && Aligned16<T>(args.dim, part.out, part.dout, part.dx);
  LaunchUnitRows<T>("unit norm's gradient", UnitNormBackwardKernel<T>, args, aligned, stream);
}

template void UnitNormForward(const UnitNormArgs<float>&, cudaStream_t);
template void UnitNormForward(const UnitNormArgs<Bf16>&, cudaStream_t);
template void UnitNormBackward(const UnitNormGradArgs<float>&, cudaStream_t);
template void UnitNormBackward(const UnitNormGradArgs<Bf16>&, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
