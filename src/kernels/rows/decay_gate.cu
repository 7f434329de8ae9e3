#include "kernels/common/cuda/log_sigmoid.cuh"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/decay_gate_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// Threads of a block: packs of adjacent columns x rows.
constexpr int kColumnPacks = 32, kRows = static_cast<int>(cuda::kPartialRows);
constexpr int kThreads = kColumnPacks * kRows;
constexpr int64_t kForwardRows = 4 * kRows;  // rows of a block: one load of the bias serves 4 rows

// The work of a thread: its first column and how many of its pack exist, and its first row.
template <typename T>
struct Place {
  HL_DEVICE explicit Place(int64_t dim)
      : column((int64_t{kColumnPacks} * blockIdx.x + threadIdx.x % kColumnPacks) * kPack<T>),
        count(static_cast<int>(min(max(dim - column, int64_t{0}), int64_t{kPack<T>}))),
        row(static_cast<int>(threadIdx.x) / kColumnPacks) {}
  int64_t column;
  int count, row;
};

// Loads x + bias for a pack of a row.
template <typename T>
HL_DEVICE void LoadGate(const T* x, int64_t at, int count, bool aligned,
                        const float (&bias)[kPack<T>], float (&z)[kPack<T>]) {
  Load(x + at, count, aligned, z);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) z[i] += bias[i];
}

// Grid: blocks of columns x blocks of rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DecayGateForwardKernel(DecayGateRows<T> args, bool aligned) {
  const Place<T> place(args.dim);
  if (place.count == 0) return;
  float bias[kPack<T>];
  LoadFloats(args.form.bias + place.column, place.count, aligned, bias);
  const int64_t first = kForwardRows * blockIdx.y;
  const int64_t end = min(args.num_rows, first + kForwardRows);
  for (int64_t row = first + place.row; row < end; row += kRows) {
    const int64_t at = row * args.dim + place.column;
    float y[kPack<T>];
    LoadGate(args.x, at, place.count, aligned, bias, y);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) y[i] = GateLogDecay(y[i], args.form);
    StoreFloats(args.log_decay + at, place.count, aligned, y);
  }
}

// Grid: blocks of columns x partial sums, whose blocks stride over the rows. partials is
// [gridDim.y, dim].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DecayGateBackwardKernel(DecayGateGradRows<T> args, bool aligned, float* partials) {
  const Place<T> place(args.dim);
  float bias[kPack<T>], dbias[kPack<T>] = {};
  if (place.count > 0) LoadFloats(args.form.bias + place.column, place.count, aligned, bias);
  const int64_t first = int64_t{kRows} * blockIdx.y + place.row,
                stride = int64_t{kRows} * gridDim.y;
  for (int64_t row = first; place.count > 0 && row < args.num_rows; row += stride) {
    const int64_t at = row * args.dim + place.column;
    float z[kPack<T>], dz[kPack<T>];
    LoadGate(args.x, at, place.count, aligned, bias, z);
    LoadFloats(args.dlog_decay + at, place.count, aligned, dz);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const bool floored = ScaledLogSigmoid(z[i], args.form.scale) < args.form.floor;
      dz[i] *= floored ? 0.0f : args.form.scale * Sigmoid(-z[i]);
      dbias[i] += dz[i];
    }
    Store(args.dx + at, place.count, aligned, dz);
  }
  StoreColumnSums<kColumnPacks, kRows>(dbias, partials + blockIdx.y * args.dim + place.column,
                                       place.count);
}

template <typename T>
unsigned ColumnBlocks(int64_t dim) {
  constexpr int64_t kColumns = int64_t{kColumnPacks} * kPack<T>;
  return static_cast<unsigned>((dim + kColumns - 1) / kColumns);
}

}  // namespace

namespace cuda {

// Splits the rows into several launches: blocks of rows are the grid's second dimension, which is
// at most 65535.
template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, cudaStream_t stream) {
  DecayGateRows<T> args = rows;
  constexpr int64_t kMostRows = 65535 * kForwardRows;
  const bool aligned = Aligned16<T>(args.dim, args.x, args.log_decay, args.form.bias);
  for (int64_t left = args.num_rows; left > 0 && args.dim > 0; left -= kMostRows) {
    args.num_rows = std::min(left, kMostRows);
    const auto blocks = static_cast<unsigned>((args.num_rows + kForwardRows - 1) / kForwardRows);
    Launch({dim3(ColumnBlocks<T>(args.dim), blocks), dim3(kThreads), 0, "decay gate"}, stream,
           DecayGateForwardKernel<T>, args, aligned);
    args.x += args.num_rows * args.dim, args.log_decay += args.num_rows * args.dim;
  }
}

template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& args, float* dbias, float* partials,
                       cudaStream_t stream) {
  if (args.dim == 0) return;
  const bool aligned = Aligned16<T>(args.dim, args.x, args.dlog_decay, args.dx, args.form.bias);
  const int64_t count = cuda::NumRowPartials(args.num_rows);
  if (count > 0) {
    Launch({dim3(ColumnBlocks<T>(args.dim), static_cast<unsigned>(count)), dim3(kThreads), 0,
            "decay gate's gradient"},
           stream, DecayGateBackwardKernel<T>, args, aligned, partials);
  }
  cuda::SumPartials(partials, count, args.dim, dbias, stream);
}

template void DecayGateForward(const DecayGateRows<float>&, cudaStream_t);
template void DecayGateForward(const DecayGateRows<Bf16>&, cudaStream_t);
template void DecayGateBackward(const DecayGateGradRows<float>&, float*, float*, cudaStream_t);
template void DecayGateBackward(const DecayGateGradRows<Bf16>&, float*, float*, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
