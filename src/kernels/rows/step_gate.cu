#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/cuda/softplus.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/step_gate_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// Threads of a block: adjacent heads x rows. A row has one element per head, a small part of the
// layer's memory traffic, so accesses are element by element.
constexpr int kHeads = 32, kRows = static_cast<int>(cuda::kPartialRows);
constexpr int kThreads = kHeads * kRows;
constexpr int64_t kForwardRows = 4 * kRows;  // rows of a block: parameters are read once for 4 rows

// A gate of one head, with its parameters.
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
__global__ void __launch_bounds__(kThreads) StepGateForwardKernel(StepGateRows<T> args) {
  const int64_t head = int64_t{kHeads} * blockIdx.x + threadIdx.x % kHeads;
  if (head >= args.dim) return;
  const HeadGate gate(args.form, head, true);
  const int64_t first = kForwardRows * blockIdx.y;
  const int64_t end = min(args.num_rows, first + kForwardRows);
  for (int64_t row = first + threadIdx.x / kHeads; row < end; row += kRows) {
    const float x = FromStorage(args.x[row * args.x_stride + head]);
    const float step = gate.Limited(SoftPlus(x + gate.bias));
    args.step[row * args.dim + head] = step;
    args.log_decay[row * args.dim + head] = gate.a * step;
  }
}

// Grid: blocks of heads x partial sums, whose blocks stride over the rows. partials is
// [gridDim.y, 2, dim].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StepGateBackwardKernel(StepGateGradRows<T> args, float* partials) {
  const int64_t head = int64_t{kHeads} * blockIdx.x + threadIdx.x % kHeads;
  const bool exists = head < args.dim;
  const HeadGate gate(args.form, head, exists);
  float dbias[1] = {}, da_log[1] = {};
  const int64_t first = int64_t{kRows} * blockIdx.y + threadIdx.x / kHeads,
                stride = int64_t{kRows} * gridDim.y;
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
  StoreColumnSums<kHeads, kRows>(dbias, to, exists ? 1 : 0);
  __syncthreads();  // all threads have read the other sums
  StoreColumnSums<kHeads, kRows>(da_log, to + args.dim, exists ? 1 : 0);
}

unsigned HeadBlocks(int64_t dim) { return static_cast<unsigned>((dim + kHeads - 1) / kHeads); }

}  // namespace

namespace cuda {

// Splits the rows into several launches: blocks of rows are the grid's second dimension, which is
// at most 65535.
template <typename T>
void StepGateForward(const StepGateRows<T>& rows, cudaStream_t stream) {
  StepGateRows<T> args = rows;
  constexpr int64_t kMostRows = 65535 * kForwardRows;
  for (int64_t left = args.num_rows; left > 0 && args.dim > 0; left -= kMostRows) {
    args.num_rows = std::min(left, kMostRows);
    const auto blocks = static_cast<unsigned>((args.num_rows + kForwardRows - 1) / kForwardRows);
    Launch({dim3(HeadBlocks(args.dim), blocks), dim3(kThreads), 0, "step gate"}, stream,
           StepGateForwardKernel<T>, args);
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
    Launch({dim3(HeadBlocks(args.dim), static_cast<unsigned>(count)), dim3(kThreads), 0,
            "step gate's gradient"},
           stream, StepGateBackwardKernel<T>, args, partials);
  }
  cuda::SumPlaces to;
  to.places[0] = {sums.dbias, args.dim, sums.dbias_added};
  to.places[1] = {sums.da_log, args.dim, sums.da_log_added};
  cuda::SumPartials(partials, count, to, stream);
}

template void StepGateForward(const StepGateRows<float>&, cudaStream_t);
template void StepGateForward(const StepGateRows<Bf16>&, cudaStream_t);
template void StepGateBackward(const StepGateGradRows<float>&, const StepGateSums&, float*,
                               cudaStream_t);
template void StepGateBackward(const StepGateGradRows<Bf16>&, const StepGateSums&, float*,
                               cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
