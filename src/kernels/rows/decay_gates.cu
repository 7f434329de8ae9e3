#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/log_sigmoid.cuh"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/decay_gates_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

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
__global__ void __launch_bounds__(kColumnThreads)
    DecayGateForwardKernel(DecayGateRows<T> args, bool aligned) {
  const ColumnPlace<T> place(blockIdx.x, args.dim);
  if (place.count == 0) return;
  float bias[kPack<T>];
  LoadFloats(args.form.bias + place.column, place.count, aligned, bias);
  const int64_t first = kForwardRows * blockIdx.y;
  const int64_t end = min(args.num_rows, first + kForwardRows);
  for (int64_t row = first + place.row; row < end; row += kBlockRows) {
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
__global__ void __launch_bounds__(kColumnThreads)
    DecayGateBackwardKernel(DecayGateGradRows<T> args, bool aligned, float* partials) {
  const ColumnPlace<T> place(blockIdx.x, args.dim);
  float bias[kPack<T>], dbias[kPack<T>] = {};
  if (place.count > 0) LoadFloats(args.form.bias + place.column, place.count, aligned, bias);
  for (int64_t row = place.first_row(); place.count > 0 && row < args.num_rows;
       row += place.row_stride()) {
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
  StoreColumnSums(dbias, partials + blockIdx.y * args.dim + place.column, place.count);
}

constexpr int kThreads = 256;

HL_DEVICE int64_t Element() { return int64_t{kThreads} * blockIdx.x + threadIdx.x; }

__global__ void __launch_bounds__(kThreads) LearnedDecayKernel(LearnedDecayArgs args) {
  const int64_t i = Element();
  if (i >= args.heads * args.width) return;
  const float p = args.p[i];
  args.log_decay[i] =
      args.form == LearnedDecayForm::kNegativeExp ? -expf(p) : OffHead(i / args.width, args).Of(p);
}

__global__ void __launch_bounds__(kThreads) LearnedDecayGradKernel(LearnedDecayGradArgs args) {
  const int64_t i = Element();
  const LearnedDecayArgs& forward = args.forward;
  if (i >= forward.heads * forward.width) return;
  const float slope = forward.form == LearnedDecayForm::kNegativeExp
                          ? forward.log_decay[i]
                          : OffHead(i / forward.width, forward).Slope(forward.p[i]);
  const float d = args.dlog_decay[i] * slope;
  args.dp[i] = args.added ? args.dp[i] + d : d;
}

template <typename Args>
void Run(const Args& args, int64_t count, void (*kernel)(Args), const char* name,
         cudaStream_t stream) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Launch({dim3(blocks), dim3(kThreads), 0, name}, stream, kernel, args);
}

}  // namespace

namespace cuda {

// Splits the rows into several launches: blocks of rows are the grid's second dimension, which is
// at most 65535.
template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, cudaStream_t stream) {
  DecayGateRows<T> args = rows;
  constexpr int64_t kMostRows = kMostRowBlocks * kForwardRows;
  const auto columns = static_cast<unsigned>(ColumnBlocks(args.dim, kPack<T>));
  const bool aligned = Aligned16<T>(args.dim, args.x, args.log_decay, args.form.bias);
  for (int64_t left = args.num_rows; left > 0 && args.dim > 0; left -= kMostRows) {
    args.num_rows = std::min(left, kMostRows);
    const auto blocks = static_cast<unsigned>((args.num_rows + kForwardRows - 1) / kForwardRows);
    Launch({dim3(columns, blocks), dim3(kColumnThreads), 0, "decay gate"}, stream,
           DecayGateForwardKernel<T>, args, aligned);
    args.x += args.num_rows * args.dim, args.log_decay += args.num_rows * args.dim;
  }
}

template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& args, float* dbias, float* partials,
                       cudaStream_t stream) {
  if (args.dim == 0) return;
  const bool aligned = Aligned16<T>(args.dim, args.x, args.dlog_decay, args.dx, args.form.bias);
  const auto columns = static_cast<unsigned>(ColumnBlocks(args.dim, kPack<T>));
  const int64_t count = cuda::NumRowPartials(args.num_rows);
  if (count > 0) {
    Launch({dim3(columns, static_cast<unsigned>(count)), dim3(kColumnThreads), 0,
            "decay gate's gradient"},
           stream, DecayGateBackwardKernel<T>, args, aligned, partials);
  }
  cuda::SumPartials(partials, count, args.dim, dbias, stream);
}

void LearnedDecayForward(const LearnedDecayArgs& args, cudaStream_t stream) {
  Run(args, args.heads * args.width, LearnedDecayKernel, "learned decay", stream);
}
void LearnedDecayBackward(const LearnedDecayGradArgs& args, cudaStream_t stream) {
  Run(args, args.forward.heads * args.forward.width, LearnedDecayGradKernel,
      "learned decay's gradient", stream);
}

template void DecayGateForward(const DecayGateRows<float>&, cudaStream_t);
template void DecayGateForward(const DecayGateRows<Bf16>&, cudaStream_t);
template void DecayGateBackward(const DecayGateGradRows<float>&, float*, float*, cudaStream_t);
template void DecayGateBackward(const DecayGateGradRows<Bf16>&, float*, float*, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
