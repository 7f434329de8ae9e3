#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/skip_gate_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// Threads of a block: packs of adjacent columns x rows.
constexpr int kColumnPacks = 32, kRows = static_cast<int>(cuda::kPartialRows);
constexpr int kThreads = kColumnPacks * kRows;
constexpr int64_t kForwardRows = 4 * kRows;  // rows of a block: skip is read once for 4 rows
constexpr int64_t kMostRowBlocks = 65535;    // limit of a grid's second dimension
constexpr int kSumThreads = 128;

// The work of a thread: its first column and how many of its pack exist, its first row, and the
// skip factors of the pack.
template <typename T>
struct Place {
  HL_DEVICE explicit Place(const SkipGateRows<T>& args, int64_t dim)
      : column((int64_t{kColumnPacks} * blockIdx.x + threadIdx.x % kColumnPacks) * kPack<T>),
        count(static_cast<int>(min(max(dim - column, int64_t{0}), int64_t{kPack<T>}))),
        first(int64_t{kRows} * blockIdx.y + threadIdx.x / kColumnPacks),
        stride(int64_t{kRows} * gridDim.y) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i)
      skip[i] = i < count ? args.skip[(column + i) / args.head_dim] : 0.0f;
  }
  int64_t column;
  int count;
  int64_t first, stride;
  float skip[kPack<T>];
};

// Grid: blocks of columns x blocks that stride over the rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SkipGateForwardKernel(SkipGateRows<T> args, int64_t dim, bool aligned) {
  const Place<T> place(args, dim);
  if (place.count == 0) return;
  for (int64_t row = place.first; row < args.num_rows; row += place.stride) {
    float y[kPack<T>], other[kPack<T>];
    Load(args.y + row * dim + place.column, place.count, aligned, y);
    Load(args.x + row * args.x_stride + place.column, place.count, aligned, other);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) y[i] = fmaf(place.skip[i], other[i], y[i]);
    if (args.gate != nullptr) {
      Load(args.gate + row * args.gate_stride + place.column, place.count, aligned, other);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) y[i] *= other[i] * Sigmoid(other[i]);
    }
    Store(args.out + row * dim + place.column, place.count, aligned, y);
  }
}

// Multiplies d = dout by silu(gate) and stores dgate for a pack of a row.
template <typename T>
HL_DEVICE void GateGradient(const SkipGateGradRows<T>& args, const Place<T>& place, int64_t row,
                            int64_t dim, bool aligned, const float (&x)[kPack<T>],
                            float (&d)[kPack<T>]) {
  const SkipGateRows<T>& in = args.forward;
  float y[kPack<T>], gate[kPack<T>];
  Load(in.y + row * dim + place.column, place.count, aligned, y);
  Load(in.gate + row * in.gate_stride + place.column, place.count, aligned, gate);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const float z = gate[i], sigmoid = Sigmoid(z);
    const float slope = sigmoid * (1.0f + z * (1.0f - sigmoid));
    gate[i] = d[i] * fmaf(place.skip[i], x[i], y[i]) * slope;
    d[i] *= z * sigmoid;
  }
  Store(args.dgate + row * args.dgate_stride + place.column, place.count, aligned, gate);
}

// Grid: blocks of columns x partial sums, whose blocks stride over the rows. partials is
// [gridDim.y, dim].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SkipGateBackwardKernel(SkipGateGradRows<T> args, int64_t dim, bool aligned, float* partials) {
  const SkipGateRows<T>& in = args.forward;
  const Place<T> place(in, dim);
  float dskip[kPack<T>] = {};
  for (int64_t row = place.first; place.count > 0 && row < in.num_rows; row += place.stride) {
    const int64_t at = row * dim + place.column;
    float x[kPack<T>], d[kPack<T>];
    Load(args.dout + at, place.count, aligned, d);
    Load(in.x + row * in.x_stride + place.column, place.count, aligned, x);
    if (in.gate != nullptr) GateGradient(args, place, row, dim, aligned, x, d);
    Store(args.dy + at, place.count, aligned, d);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      dskip[i] = fmaf(d[i], x[i], dskip[i]);
      d[i] *= place.skip[i];
    }
    Store(args.dx + at, place.count, aligned, d);
  }
  StoreColumnSums<kColumnPacks, kRows>(dskip, partials + blockIdx.y * dim + place.column,
                                       place.count);
}

// Grid: heads. dskip[h] = sum over `count` partials and the channels of head h.
__global__ void __launch_bounds__(kSumThreads)
    SumHeadsKernel(const float* partials, int64_t count, int64_t dim, int64_t head_dim,
                   float* dskip, bool added) {
  HL_SHARED(shared, float[kMaxRowWarps]);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < count * head_dim; i += kSumThreads)
    sum += partials[i / head_dim * dim + blockIdx.x * head_dim + i % head_dim];
  sum = RowSum(sum, kSumThreads, shared);
  if (threadIdx.x == 0) dskip[blockIdx.x] = added ? dskip[blockIdx.x] + sum : sum;
}

template <typename T>
unsigned ColumnBlocks(int64_t dim) {
  constexpr int64_t kColumns = int64_t{kColumnPacks} * kPack<T>;
  return static_cast<unsigned>((dim + kColumns - 1) / kColumns);
}

// Returns true if all rows allow 16-byte accesses.
template <typename T>
bool IsAligned(const SkipGateRows<T>& args) {
  return Aligned16<T>(args.dim(), args.y, args.x, args.gate, args.out) &&
         args.x_stride % kPack<T> == 0 && args.gate_stride % kPack<T> == 0;
}

}  // namespace

namespace cuda {

template <typename T>
void SkipGateForward(const SkipGateRows<T>& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.dim() == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min(kMostRowBlocks, (args.num_rows + kForwardRows - 1) / kForwardRows));
  Launch({dim3(ColumnBlocks<T>(args.dim()), blocks), dim3(kThreads), 0, "skip gate"}, stream,
         SkipGateForwardKernel<T>, args, args.dim(), IsAligned(args));
}

template <typename T>
void SkipGateBackward(const SkipGateGradRows<T>& args, float* dskip, bool added, float* partials,
                      cudaStream_t stream) {
  const SkipGateRows<T>& in = args.forward;
  if (in.dim() == 0) return;
  const bool aligned = IsAligned(in) &&
                       Aligned16<T>(in.dim(), args.dout, args.dy, args.dx, args.dgate) &&
                       args.dgate_stride % kPack<T> == 0;
  const int64_t count = cuda::NumRowPartials(in.num_rows);
  if (count > 0)
    Launch({dim3(ColumnBlocks<T>(in.dim()), static_cast<unsigned>(count)), dim3(kThreads), 0,
            "skip gate's gradient"},
           stream, SkipGateBackwardKernel<T>, args, in.dim(), aligned, partials);
  Launch({dim3(static_cast<unsigned>(in.num_heads)), dim3(kSumThreads), 0, "sum of skip gradients"},
         stream, SumHeadsKernel, partials, count, in.dim(), in.head_dim, dskip, added);
}

template void SkipGateForward(const SkipGateRows<float>&, cudaStream_t);
template void SkipGateForward(const SkipGateRows<Bf16>&, cudaStream_t);
template void SkipGateBackward(const SkipGateGradRows<float>&, float*, bool, float*, cudaStream_t);
template void SkipGateBackward(const SkipGateGradRows<Bf16>&, float*, bool, float*, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
