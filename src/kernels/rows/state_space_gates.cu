#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/cuda/softplus.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/state_space_gates_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// ---- the step gate ----

// A gate of one head, with its parameters. A row has one element per head, a small part of the
// layer's memory traffic, so accesses are element by element.
struct HeadGate {
  HL_DEVICE HeadGate(const StepGateForm& form, int64_t head, bool exists)
      : bias(exists ? form.bias[head] : 0.0f),
        a(exists ? -expf(form.a_log[head]) : 0.0f),
        least(form.least),
        most(form.most) {}
  HL_DEVICE float Limited(float step) const {
    const float above = step < least ? least : step;  // NaN stays NaN
    return above > most ? most : above;
  }
  float bias, a, least, most;
};

// Grid: blocks of heads x blocks of rows.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads) StepGateForwardKernel(StepGateRows<T> args) {
  const int64_t head = int64_t{kColumnLanes} * blockIdx.x + threadIdx.x % kColumnLanes;
  if (head >= args.dim) return;
  const HeadGate gate(args.form, head, true);
  const int64_t first = kForwardRows * blockIdx.y;
  const int64_t end = min(args.num_rows, first + kForwardRows);
  for (int64_t row = first + threadIdx.x / kColumnLanes; row < end; row += kBlockRows) {
    const float x = FromStorage(args.x[row * args.x_stride + head]);
    const float step = gate.Limited(SoftPlus(x + gate.bias));
    args.step[row * args.dim + head] = step;
    args.log_decay[row * args.dim + head] = gate.a * step;
  }
}

// Grid: blocks of heads x partial sums, whose blocks stride over the rows. partials is
// [gridDim.y, 2, dim].
template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    StepGateBackwardKernel(StepGateGradRows<T> args, float* partials) {
  const int64_t head = int64_t{kColumnLanes} * blockIdx.x + threadIdx.x % kColumnLanes;
  const bool exists = head < args.dim;
  const HeadGate gate(args.form, head, exists);
  float dbias[1] = {}, da_log[1] = {};
  const int64_t first = int64_t{kBlockRows} * blockIdx.y + threadIdx.x / kColumnLanes,
                stride = int64_t{kBlockRows} * gridDim.y;
  for (int64_t row = first; exists && row < args.num_rows; row += stride) {
    const float z = FromStorage(args.x[row * args.x_stride + head]) + gate.bias;
    const float step = SoftPlus(z), dlog_decay = args.dlog_decay[row * args.dim + head];
    const float slope = step < gate.least || step > gate.most ? 0.0f : Sigmoid(z);
    const float dz = fmaf(gate.a, dlog_decay, args.dstep[row * args.dim + head]) * slope;
    args.dx[row * args.dx_stride + head] = Narrow<T>(dz);
    dbias[0] += dz;
    da_log[0] = fmaf(dlog_decay, gate.a * gate.Limited(step), da_log[0]);
  }
  float* const to = partials + 2 * args.dim * blockIdx.y + head;
  StoreColumnSums(dbias, to, exists ? 1 : 0);
  __syncthreads();  // all threads have read the other sums
  StoreColumnSums(da_log, to + args.dim, exists ? 1 : 0);
}

// ---- the skip gate ----

constexpr int kSumThreads = 128;

// The work of a thread: its first column and how many of its pack exist, its first row, and the
// skip factors of the pack.
template <typename T>
struct SkipPlace {
  HL_DEVICE explicit SkipPlace(const SkipGateRows<T>& args, int64_t dim)
      : column((int64_t{kColumnLanes} * blockIdx.x + threadIdx.x % kColumnLanes) * kPack<T>),
        count(static_cast<int>(min(max(dim - column, int64_t{0}), int64_t{kPack<T>}))),
        first(int64_t{kBlockRows} * blockIdx.y + threadIdx.x / kColumnLanes),
        stride(int64_t{kBlockRows} * gridDim.y) {
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
__global__ void __launch_bounds__(kColumnThreads)
    SkipGateForwardKernel(SkipGateRows<T> args, int64_t dim, bool aligned) {
  const SkipPlace<T> place(args, dim);
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
HL_DEVICE void GateGradient(const SkipGateGradRows<T>& args, const SkipPlace<T>& place, int64_t row,
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
__global__ void __launch_bounds__(kColumnThreads)
    SkipGateBackwardKernel(SkipGateGradRows<T> args, int64_t dim, bool aligned, float* partials) {
  const SkipGateRows<T>& in = args.forward;
  const SkipPlace<T> place(in, dim);
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
  StoreColumnSums(dskip, partials + blockIdx.y * dim + place.column, place.count);
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

// Returns true if all rows allow 16-byte accesses.
template <typename T>
bool IsAligned(const SkipGateRows<T>& args) {
  return Aligned16<T>(args.dim(), args.y, args.x, args.gate, args.out) &&
         args.x_stride % kPack<T> == 0 && args.gate_stride % kPack<T> == 0;
}

}  // namespace

namespace cuda {

// Splits the rows into several launches: blocks of rows are the grid's second dimension, which is
// at most 65535.
template <typename T>
void StepGateForward(const StepGateRows<T>& rows, cudaStream_t stream) {
  StepGateRows<T> args = rows;
  constexpr int64_t kMostRows = kMostRowBlocks * kForwardRows;
  for (int64_t left = args.num_rows; left > 0 && args.dim > 0; left -= kMostRows) {
    args.num_rows = std::min(left, kMostRows);
    const auto blocks = static_cast<unsigned>((args.num_rows + kForwardRows - 1) / kForwardRows);
    Launch({dim3(static_cast<unsigned>(ColumnBlocks(args.dim)), blocks), dim3(kColumnThreads), 0,
            "step gate"},
           stream, StepGateForwardKernel<T>, args);
    args.x += args.num_rows * args.x_stride;
    args.step += args.num_rows * args.dim, args.log_decay += args.num_rows * args.dim;
  }
}

template <typename T>
void StepGateBackward(const StepGateGradRows<T>& args, const StepGateSums& sums, float* partials,
                      cudaStream_t stream) {
  if (args.dim == 0) return;
  const int64_t count = cuda::NumRowPartials(args.num_rows);
  if (count > 0) {
    Launch({dim3(static_cast<unsigned>(ColumnBlocks(args.dim)), static_cast<unsigned>(count)),
            dim3(kColumnThreads), 0, "step gate's gradient"},
           stream, StepGateBackwardKernel<T>, args, partials);
  }
  cuda::SumPlaces to;
  to.places[0] = {sums.dbias, args.dim, sums.dbias_added};
  to.places[1] = {sums.da_log, args.dim, sums.da_log_added};
  cuda::SumPartials(partials, count, to, stream);
}

template <typename T>
void SkipGateForward(const SkipGateRows<T>& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.dim() == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min(kMostRowBlocks, (args.num_rows + kForwardRows - 1) / kForwardRows));
  Launch({dim3(static_cast<unsigned>(ColumnBlocks(args.dim(), kPack<T>)), blocks),
          dim3(kColumnThreads), 0, "skip gate"},
         stream, SkipGateForwardKernel<T>, args, args.dim(), IsAligned(args));
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
    Launch({dim3(static_cast<unsigned>(ColumnBlocks(in.dim(), kPack<T>)),
                 static_cast<unsigned>(count)),
            dim3(kColumnThreads), 0, "skip gate's gradient"},
           stream, SkipGateBackwardKernel<T>, args, in.dim(), aligned, partials);
  Launch({dim3(static_cast<unsigned>(in.num_heads)), dim3(kSumThreads), 0, "sum of skip gradients"},
         stream, SumHeadsKernel, partials, count, in.dim(), in.head_dim, dskip, added);
}

template void StepGateForward(const StepGateRows<float>&, cudaStream_t);
template void StepGateForward(const StepGateRows<Bf16>&, cudaStream_t);
template void StepGateBackward(const StepGateGradRows<float>&, const StepGateSums&, float*,
                               cudaStream_t);
template void StepGateBackward(const StepGateGradRows<Bf16>&, const StepGateSums&, float*,
                               cudaStream_t);
template void SkipGateForward(const SkipGateRows<float>&, cudaStream_t);
template void SkipGateForward(const SkipGateRows<Bf16>&, cudaStream_t);
template void SkipGateBackward(const SkipGateGradRows<float>&, float*, bool, float*, cudaStream_t);
template void SkipGateBackward(const SkipGateGradRows<Bf16>&, float*, bool, float*, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
