#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/cuda/sum_partials.h"
#include "kernels/rows/rms_norm_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

// The work of a thread: packs of its row that start at `column`, + lanes packs, ... `once`: it has
// at most one pack, which stays in registers between the passes over the row.
template <typename T>
struct Place {
  HL_DEVICE Place(const Schedule& schedule, int64_t dim_in)
      : lanes(schedule.lanes),
        group(static_cast<int>(threadIdx.x) / schedule.lanes),
        column(static_cast<int>(threadIdx.x) % schedule.lanes * kPack<T>),
        dim(static_cast<int>(dim_in)),
        step(schedule.lanes * kPack<T>),
        once(step >= dim) {}
  int lanes, group, column, dim, step;
  bool once;
};

// Loads x, or the sum of x and residual as it is stored.
template <typename T>
HL_DEVICE void LoadInput(const NormRows<T>& args, int64_t at, int count, bool aligned,
                         float (&x)[kPack<T>]) {
  Load(args.x + at, count, aligned, x);
  if (args.residual == nullptr) return;
  float other[kPack<T>];
  Load(args.residual + at, count, aligned, other);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x[i] = FromStorage(Narrow<T>(x[i] + other[i]));
  Store(args.sum + at, count, aligned, x);
}

// Grid: blocks of rows. Makes two passes over a row: sum of squares, then output.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    NormForwardKernel(NormRows<T> args, Schedule schedule) {
  HL_SHARED(partial, float[kMaxRowWarps]);
  const Place<T> place(schedule, args.dim);
  const int64_t row = int64_t{1} * blockIdx.x * schedule.rows_per_block + place.group;
  const bool valid = row < args.num_rows;
  const int64_t begin = row * args.dim;
  float x[kPack<T>];
  float squares = 0;
  for (int c = place.column; valid && c < place.dim; c += place.step) {
    LoadInput(args, begin + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) squares += x[i] * x[i];
  }
  squares = RowSum(squares, place.lanes, partial);
  if (!valid) return;
  const float inverse_rms = 1.0f / sqrtf(squares / static_cast<float>(place.dim) + args.eps);
  if (place.column == 0) args.inverse_rms[row] = inverse_rms;
  const int64_t gate_begin = args.gate_place.of(row, args.dim);
  const T* const normed = args.residual == nullptr ? args.x : args.sum;
  for (int c = place.column; c < place.dim; c += place.step) {
    const int count = place.dim - c;
    if (!place.once) Load(normed + begin + c, count, schedule.aligned, x);
    float weight[kPack<T>];
    LoadFloats(args.weight + c, count, schedule.aligned, weight);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x[i] *= inverse_rms * weight[i];
    if (args.gate != nullptr) {
      float gate[kPack<T>];
      Load(args.gate + gate_begin + c, count, schedule.aligned, gate);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i)
        x[i] *= GateFactor(args.gate_kind, gate[i], Sigmoid(gate[i]));
    }
    Store(args.out + begin + c, count, schedule.aligned, x);
  }
}

// Values of one pack of a row: x, mw = m weight, and m n.
template <typename T>
struct Terms {
  float x[kPack<T>], mw[kPack<T>], mn[kPack<T>];
};

// kStoresGate: this is the first pass, which stores dgate.
template <typename T, NormGate kGate, bool kStoresGate>
HL_DEVICE void LoadTerms(const NormGradRows<T>& args, int64_t row, int c, int count, bool aligned,
                         float inverse_rms, Terms<T>& terms) {
  const int64_t at = row * args.dim + c;
  float weight[kPack<T>];
  Load(args.x + at, count, aligned, terms.x);
  Load(args.dout + at, count, aligned, terms.mw);  // holds dout at first
  LoadFloats(args.weight + c, count, aligned, weight);
  if (args.gate != nullptr) {
    float gate[kPack<T>], dgate[kPack<T>];
    Load(args.gate + args.gate_place.of(row, args.dim) + c, count, aligned, gate);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const float g = gate[i], sigmoid = Sigmoid(g);
      dgate[i] =
          terms.mw[i] * (terms.x[i] * inverse_rms) * weight[i] * GateSlope(kGate, g, sigmoid);
      terms.mw[i] *= GateFactor(kGate, g, sigmoid);
    }
    if (kStoresGate) Store(args.dgate + at, count, aligned, dgate);
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    terms.mn[i] = terms.mw[i] * (terms.x[i] * inverse_rms);
    terms.mw[i] *= weight[i];
  }
}

// Stores dx of one pack, including the other gradient of x.
template <typename T>
HL_DEVICE void StoreInputGradient(const NormGradRows<T>& args, int64_t at, int count, bool aligned,
                                  float inverse_rms, float slope, const Terms<T>& terms) {
  float dx[kPack<T>];
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) dx[i] = terms.mw[i] * inverse_rms - terms.x[i] * slope;
  if (args.dsum != nullptr) {
    float other[kPack<T>];
    Load(args.dsum + at, count, aligned, other);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) dx[i] += other[i];
  }
  Store(args.dx + at, count, aligned, dx);
}

// Grid: at most kNormMaxBlocks blocks that stride over the rows. partials [blocks, dim] holds each
// block's dweight, summed in registers if a thread has one pack, else in place. The minimum of one
// block, where 0 means none, keeps the compiler from spilling registers for a higher occupancy.
template <typename T, bool kSilu>
__global__ void __launch_bounds__(kRowThreads, kSilu ? 0 : 1)
    NormBackwardKernel(NormGradRows<T> args, Schedule schedule, float* partials) {
  constexpr NormGate kGate = kSilu ? NormGate::kSilu : NormGate::kSigmoid;
  // Rows alternate between the two, so that one barrier per row is enough.
  HL_SHARED(partial, float[2][kMaxRowWarps]);
  HL_SHARED(columns, float[kGroupThreads * kPack<T>]);
  const Place<T> place(schedule, args.dim);
  float* const mine = partials + blockIdx.x * args.dim;
  float dweight[kPack<T>] = {};
  int turn = 0;
  const int64_t stride = int64_t{1} * gridDim.x * schedule.rows_per_block;
  for (int64_t first = int64_t{1} * blockIdx.x * schedule.rows_per_block; first < args.num_rows;
       first += stride, turn ^= 1) {
    const int64_t row = first + place.group;
    const bool valid = row < args.num_rows;
    const int64_t begin = row * args.dim;
    const float inverse_rms = valid ? args.inverse_rms[row] : 0.0f;
    Terms<T> terms;
    float dot = 0;
    for (int c = place.column; valid && c < place.dim; c += place.step) {
      LoadTerms<T, kGate, true>(args, row, c, place.dim - c, schedule.aligned, inverse_rms, terms);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) dot += terms.mw[i] * terms.x[i];
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        if (place.once) {
          dweight[i] += terms.mn[i];
        } else if (c + i < place.dim) {
          mine[c + i] = first < stride ? terms.mn[i] : mine[c + i] + terms.mn[i];
        }
      }
    }
    dot = RowSum(dot, place.lanes, partial[turn]);
    const float slope =
        dot * inverse_rms * inverse_rms * inverse_rms / static_cast<float>(place.dim);
    for (int c = place.column; valid && c < place.dim; c += place.step) {
      if (!place.once)
        LoadTerms<T, kGate, false>(args, row, c, place.dim - c, schedule.aligned, inverse_rms,
                                   terms);
      StoreInputGradient(args, begin + c, place.dim - c, schedule.aligned, inverse_rms, slope,
                         terms);
    }
  }
  if (!place.once) return;
  if (schedule.rows_per_block == 1) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i)
      if (place.column + i < place.dim) mine[place.column + i] = dweight[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) columns[threadIdx.x * kPack<T> + i] = dweight[i];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < place.dim; c += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int group = 0; group < schedule.rows_per_block; ++group)
      sum += columns[group * place.step + c];
    mine[c] = sum;
  }
}

void CheckDim(int64_t dim) {
  constexpr int64_t kMaxDim = int64_t{1} << 30;  // columns are counted in 32 bits
  HL_CHECK(dim <= kMaxDim, "RMS norm over ", dim, " channels. Use at most ", kMaxDim, ".");
}

template <typename T>
void Forward(const NormRows<T>& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.dim == 0) return;
  CheckDim(args.dim);
  const RowShape shape = RowShapeOf<T>(args.dim);
  const bool aligned =
      args.gate_place.gate_stride % kPack<T> == 0 &&
      Aligned16<T>(args.dim, args.x, args.residual, args.gate, args.weight, args.sum, args.out);
  const int64_t blocks = (args.num_rows + shape.rows_per_block - 1) / shape.rows_per_block;
  Launch({dim3(static_cast<unsigned>(blocks)), dim3(shape.threads()), 0, "RMS norm"}, stream,
         NormForwardKernel<T>, args, Schedule{shape.lanes, shape.rows_per_block, aligned});
}

template <typename T>
void Backward(const NormGradRows<T>& args, float* dweight, bool added, float* workspace,
              cudaStream_t stream) {
  if (args.dim == 0) return;
  CheckDim(args.dim);
  const RowShape shape = RowShapeOf<T>(args.dim);
  const bool aligned = args.gate_place.gate_stride % kPack<T> == 0 &&
                       Aligned16<T>(args.dim, args.x, args.gate, args.weight, args.dout, args.dsum,
                                    args.dx, args.dgate);
  const int64_t blocks = std::min(
      cuda::kNormMaxBlocks, (args.num_rows + shape.rows_per_block - 1) / shape.rows_per_block);
  if (blocks > 0) {
    // A kernel for each function: a choice within the kernel spills registers.
    const auto kernel = args.gate_kind == NormGate::kSilu ? NormBackwardKernel<T, true>
                                                          : NormBackwardKernel<T, false>;
    Launch({dim3(static_cast<unsigned>(blocks)), dim3(shape.threads()), 0, "RMS norm's gradient"},
           stream, kernel, args, Schedule{shape.lanes, shape.rows_per_block, aligned}, workspace);
  }
  cuda::SumPartials(workspace, blocks, args.dim, dweight, stream, added);
}

}  // namespace

namespace cuda {

void NormForward(const NormRows<float>& rows, cudaStream_t stream) { Forward(rows, stream); }
void NormForward(const NormRows<Bf16>& rows, cudaStream_t stream) { Forward(rows, stream); }
void NormBackward(const NormGradRows<float>& rows, float* dweight, bool added, float* workspace,
                  cudaStream_t stream) {
  Backward(rows, dweight, added, workspace, stream);
}
void NormBackward(const NormGradRows<Bf16>& rows, float* dweight, bool added, float* workspace,
                  cudaStream_t stream) {
  Backward(rows, dweight, added, workspace, stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
