#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/cuda/softplus.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/delta_gates_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// Accesses are element by element: the decays of one head per column are a small part of a layer's
// memory traffic, and those of channels move 6 bytes per element, so 32 lanes cover whole sectors.

// The decay of one column, with its parameters.
struct DecayColumn {
  HL_DEVICE DecayColumn(const DeltaGatesForm& form, int64_t column, bool exists)
      : bias(exists ? form.bias[column] : 0.0f),
        rate(exists ? expf(form.a_log[column / form.channels]) : 0.0f),
        bound(form.bound) {}
  HL_DEVICE float LogDecay(float x) const {
    const float z = x + bias;
    return bound < 0.0f ? bound * Sigmoid(rate * z) : -rate * SoftPlus(z);
  }
  // Returns dx and adds the gradient of a_log to `da_log`.
  HL_DEVICE float Gradient(float x, float dlog_decay, float& da_log) const {
    const float z = x + bias;
    if (bound < 0.0f) {
      const float s = Sigmoid(rate * z), dz = dlog_decay * bound * s * (1.0f - s) * rate;
      da_log = fmaf(dz, z, da_log);
      return dz;
    }
    const float d = -dlog_decay * rate;
    da_log = fmaf(d, SoftPlus(z), da_log);
    return d * Sigmoid(z);
  }
  float bias, rate, bound;
};

// Grid: blocks of columns, first those of the decays, then those of beta x blocks of rows.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads) DeltaGatesForwardKernel(DeltaGatesRows<T> args) {
  const int64_t decays = args.form.num_decays(), betas = args.form.num_betas;
  const int64_t decay_blocks = ColumnBlocks(decays);
  const bool is_decay = blockIdx.x < decay_blocks;
  const int64_t block = is_decay ? blockIdx.x : blockIdx.x - decay_blocks;
  const int64_t column = kColumnLanes * block + threadIdx.x % kColumnLanes;
  if (column >= (is_decay ? decays : betas)) return;
  const DecayColumn decay(args.form, column, is_decay);
  const int64_t first = kForwardRows * blockIdx.y;
  const int64_t end = min(args.num_rows, first + kForwardRows);
  for (int64_t row = first + threadIdx.x / kColumnLanes; row < end; row += kBlockRows) {
    if (is_decay) {
      const float x = FromStorage(args.x[row * args.x_stride + column]);
      args.log_decay[row * decays + column] = decay.LogDecay(x);
    } else {
      const float b = FromStorage(args.b[row * args.b_stride + column]);
      args.beta[row * betas + column] = args.form.beta_scale * Sigmoid(b);
    }
  }
}

// Computes the gradients of one column of decays over the rows of the block.
template <typename T>
HL_DEVICE void ColumnGradients(const DeltaGatesGradRows<T>& args, int64_t column, bool exists,
                               float (&dbias)[1], float (&da_log)[1]) {
  const DecayColumn decay(args.form, column, exists);
  const int64_t stride = int64_t{kBlockRows} * gridDim.y, decays = args.form.num_decays();
  int64_t row = int64_t{kBlockRows} * blockIdx.y + threadIdx.x / kColumnLanes;
  for (; exists && row < args.num_rows; row += stride) {
    const float x = FromStorage(args.x[row * args.x_stride + column]);
    const float dx = decay.Gradient(x, args.dlog_decay[row * decays + column], da_log[0]);
    args.dx[row * args.dx_stride + column] = Narrow<T>(dx);
    dbias[0] += dx;
  }
}

// Computes the gradients of beta's columns in block `block`.
template <typename T>
HL_DEVICE void BetaGradients(const DeltaGatesGradRows<T>& args, int64_t block) {
  const int64_t betas = args.form.num_betas,
                column = kColumnLanes * block + threadIdx.x % kColumnLanes;
  const int64_t stride = int64_t{kBlockRows} * gridDim.y;
  int64_t row = int64_t{kBlockRows} * blockIdx.y + threadIdx.x / kColumnLanes;
  for (; column < betas && row < args.num_rows; row += stride) {
    const float s = Sigmoid(FromStorage(args.b[row * args.b_stride + column]));
    const float db = args.dbeta[row * betas + column] * args.form.beta_scale * s * (1.0f - s);
    args.db[row * args.db_stride + column] = Narrow<T>(db);
  }
}

// Grid: blocks of decays, then blocks of beta's columns x partial sums, whose blocks stride over
// the rows. A block of decays has 32 heads, or with kPerChannel the channels of one head. partials
// is [gridDim.y, D + num_heads]: dbias, then da_log.
template <typename T, bool kPerChannel>
__global__ void __launch_bounds__(kColumnThreads)
    DeltaGatesBackwardKernel(DeltaGatesGradRows<T> args, float* partials) {
  const DeltaGatesForm& form = args.form;
  const int64_t decays = form.num_decays();
  const int64_t decay_blocks = kPerChannel ? form.num_heads : ColumnBlocks(decays);
  if (blockIdx.x >= decay_blocks) {
    BetaGradients(args, blockIdx.x - decay_blocks);
    return;
  }
  float* const mine = partials + (decays + form.num_heads) * blockIdx.y;
  float da_log[1] = {};
  if constexpr (kPerChannel) {
    HL_SHARED(partial, float[kMaxRowWarps]);
    for (int64_t first = 0; first < form.channels; first += kColumnLanes) {
      const int64_t channel = first + threadIdx.x % kColumnLanes;
      const int64_t column = form.channels * blockIdx.x + channel;
      const bool exists = channel < form.channels;
      float dbias[1] = {};
      ColumnGradients(args, column, exists, dbias, da_log);
      StoreColumnSums(dbias, mine + column, exists ? 1 : 0);
      __syncthreads();  // all threads have read the other sums
    }
    const float sum = RowSum(da_log[0], kColumnThreads, partial);
    if (threadIdx.x == 0) mine[decays + blockIdx.x] = sum;
  } else {
    const int64_t column = int64_t{kColumnLanes} * blockIdx.x + threadIdx.x % kColumnLanes;
    const bool exists = column < decays;
    float dbias[1] = {};
    ColumnGradients(args, column, exists, dbias, da_log);
    StoreColumnSums(dbias, mine + column, exists ? 1 : 0);
    __syncthreads();  // all threads have read the other sums
    StoreColumnSums(da_log, mine + decays + column, exists ? 1 : 0);
  }
}

}  // namespace

namespace cuda {

// Splits the rows into several launches: blocks of rows are the grid's second dimension, which is
// at most 65535.
template <typename T>
void DeltaGatesForward(const DeltaGatesRows<T>& rows, cudaStream_t stream) {
  DeltaGatesRows<T> args = rows;
  constexpr int64_t kMostRows = kMostRowBlocks * kForwardRows;
  const int64_t decays = args.form.num_decays(), betas = args.form.num_betas;
  const auto columns = static_cast<unsigned>(ColumnBlocks(decays) + ColumnBlocks(betas));
  for (int64_t left = args.num_rows; left > 0 && columns > 0; left -= kMostRows) {
    args.num_rows = std::min(left, kMostRows);
    const auto blocks = static_cast<unsigned>((args.num_rows + kForwardRows - 1) / kForwardRows);
    Launch({dim3(columns, blocks), dim3(kColumnThreads), 0, "delta gates"}, stream,
           DeltaGatesForwardKernel<T>, args);
    args.x += args.num_rows * args.x_stride, args.b += args.num_rows * args.b_stride;
    args.log_decay += args.num_rows * decays, args.beta += args.num_rows * betas;
  }
}

template <typename T>
void DeltaGatesBackward(const DeltaGatesGradRows<T>& args, const DeltaGatesSums& sums,
                        float* workspace, cudaStream_t stream) {
  const DeltaGatesForm& form = args.form;
  const int64_t decays = form.num_decays(), count = cuda::NumRowPartials(args.num_rows);
  const bool per_channel = form.channels > 1;
  const int64_t columns =
      (per_channel ? form.num_heads : ColumnBlocks(decays)) + ColumnBlocks(form.num_betas);
  if (count > 0 && columns > 0) {
    const auto kernel =
        per_channel ? DeltaGatesBackwardKernel<T, true> : DeltaGatesBackwardKernel<T, false>;
    Launch({dim3(static_cast<unsigned>(columns), static_cast<unsigned>(count)),
            dim3(kColumnThreads), 0, "delta gates' gradient"},
           stream, kernel, args, workspace);
  }
  if (decays == 0) return;
  cuda::SumPlaces to;
  to.places[0] = {sums.dbias, decays, sums.dbias_added};
  to.places[1] = {sums.da_log, form.num_heads, sums.da_log_added};
  cuda::SumPartials(workspace, count, to, stream);
}

template void DeltaGatesForward(const DeltaGatesRows<float>&, cudaStream_t);
template void DeltaGatesForward(const DeltaGatesRows<Bf16>&, cudaStream_t);
template void DeltaGatesBackward(const DeltaGatesGradRows<float>&, const DeltaGatesSums&, float*,
                                 cudaStream_t);
template void DeltaGatesBackward(const DeltaGatesGradRows<Bf16>&, const DeltaGatesSums&, float*,
                                 cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
