#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/rms_norm_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

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
  const RowPlace<T> place(schedule, args.dim);
  const int64_t row = place.row(schedule);
  const bool valid = row < args.num_rows;
  const int64_t begin = row * args.dim;
  float x[kPack<T>];
  float squares = 0;
  for (int c = place.column; valid && c < place.dim; c += place.step) {
    LoadInput(args, begin + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) squares += x[i] * x[i];
  }
  squares = RowSum(squares, schedule.lanes, partial);
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

// ---- the gradient of rows that fit in registers ----

// How the kernel of the gradient divides its block. A row has `lanes` threads: a power of two up to
// a warp, or 1, 2 or 4 warps. Each thread has up to kPacks packs of its row, at distances of
// `lanes` packs.
constexpr int kGradThreads = 128, kGradWarps = kGradThreads / 32;
constexpr int kPacksOfWideRow = 4;
constexpr int64_t kMaxBlocksOfWideRows = 264;  // two on each of the 132 SMs of an H100
struct GradSchedule {
  int packs, lanes;  // packs per thread: 0 if the rows do not fit
  bool aligned;      // true: every row allows 16-byte accesses
  int rows_per_block() const { return kGradThreads / lanes; }
};

template <typename T>
GradSchedule ScheduleGradient(int64_t dim, bool aligned) {
  const int64_t packs = (dim + kPack<T> - 1) / kPack<T>;
  const int per_thread = packs <= 32 ? 1 : kPacksOfWideRow;
  int lanes = packs <= 32 ? 1 : 32;
  while (lanes * per_thread < packs && lanes < kGradThreads) lanes *= 2;
  return {lanes * per_thread < packs ? 0 : per_thread, lanes, aligned};
}

// Returns the bits of `count` elements, and zeros past them.
template <typename T>
HL_DEVICE uint4 LoadWords(const T* from, int count, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint4*>(from);
  float x[kPack<T>];
  Load(from, count, false, x);
  return Packed(x);
}

// The work of a thread.
template <typename T>
struct GradPlace {
  HL_DEVICE GradPlace(int lanes_in, int64_t dim_in)
      : lanes(lanes_in),
        group(static_cast<int>(threadIdx.x) / lanes_in),
        column(static_cast<int>(threadIdx.x) % lanes_in * kPack<T>),
        dim(static_cast<int>(dim_in)) {}
  HL_DEVICE int column_of(int pack) const { return column + pack * lanes * kPack<T>; }
  int lanes, group, column, dim;
};

// A thread's packs of one row, as stored. `other` is the gate or, without one, the other gradient
// of x, which may be absent.
template <typename T, int kPacks, bool kGated>
struct GradRow {
  HL_DEVICE void Fetch(const NormGradRows<T>& args, const GradPlace<T>& place, int64_t row,
                       bool aligned) {
    const bool valid = row < args.num_rows;
    inverse_rms = valid ? args.inverse_rms[row] : 0.0f;
    const int64_t begin = row * args.dim;
    const T* const third = kGated                 ? args.gate + args.gate_place.of(row, args.dim)
                           : args.dsum != nullptr ? args.dsum + begin
                                                  : nullptr;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      x[p] = dout[p] = other[p] = make_uint4(0, 0, 0, 0);
      const int c = place.column_of(p), count = place.dim - c;
      if (!valid || count <= 0) continue;
      x[p] = LoadWords(args.x + begin + c, count, aligned);
      dout[p] = LoadWords(args.dout + begin + c, count, aligned);
      if (third != nullptr) other[p] = LoadWords(third + c, count, aligned);
    }
  }

  uint4 x[kPacks], dout[kPacks], other[kPacks];
  float inverse_rms;
};

// Replaces dout by m weight, stores the gradient of the gate, and adds m n to dweight. Returns the
// pack's share of the sum of m weight x.
template <typename T, bool kGated, NormGate kGate>
HL_DEVICE float DifferentiatePack([[maybe_unused]] T* dgate, [[maybe_unused]] uint4 gate_words,
                                  const float* weights, int count, bool aligned, float inverse_rms,
                                  const float (&x)[kPack<T>], float (&mw)[kPack<T>],
                                  float (&dweight)[kPack<T>]) {
  float weight[kPack<T>];
  LoadFloats(weights, count, aligned, weight);
  if constexpr (kGated) {
    float gate[kPack<T>];
    Unpack(gate_words, gate);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const float g = gate[i], sigmoid = Sigmoid(g), dout = mw[i];
      gate[i] = dout * (x[i] * inverse_rms) * weight[i] * GateSlope(kGate, g, sigmoid);
      mw[i] = dout * GateFactor(kGate, g, sigmoid);
    }
    Store(dgate, count, aligned, gate);
  }
  float dot = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    dweight[i] += mw[i] * (x[i] * inverse_rms);
    mw[i] *= weight[i];
    dot += mw[i] * x[i];
  }
  return dot;
}

// Returns the sum of x over the threads of each row, with the same bits in all of them. All threads
// of the block must take part. `partial` may be reused after a barrier.
HL_DEVICE float GradRowSum(float x, int lanes, float (&partial)[kGradWarps]) {
  if (lanes <= 32) {
    for (int offset = lanes / 2; offset > 0; offset /= 2)
      x += __shfl_xor_sync(kFullWarp, x, offset);
    return x;
  }
  x = WarpSum(x);
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = lanes / 32;
  if (threadIdx.x % 32 == 0) partial[warp] = x;
  __syncthreads();
  const int first = warp / warps * warps;
  float sum = 0;
  for (int w = first; w < first + warps; ++w) sum += partial[w];
  return sum;
}

// Stores the block's sums of dweight: over its groups of threads, in order.
template <typename T, int kPacks>
HL_DEVICE void StoreWeightSums(const GradPlace<T>& place, float* to,
                               const float (&dweight)[kPacks][kPack<T>]) {
  HL_SHARED(columns, float[kGradThreads * kPack<T>]);
  const int width = place.lanes * kPack<T>;  // columns of one pack of every thread of a row
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int first = p * width;
    if (first >= place.dim) return;
    if (p > 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) columns[threadIdx.x * kPack<T> + i] = dweight[p][i];
    __syncthreads();
    const int count = min(width, place.dim - first);
    for (int c = static_cast<int>(threadIdx.x); c < count; c += kGradThreads) {
      float sum = 0;
      for (int at = c; at < kGradThreads * kPack<T>; at += width) sum += columns[at];
      to[first + c] = sum;
    }
  }
}

// Grid: blocks that stride over the rows. A row is read once, while the row before it is reduced;
// its threads keep it in registers. partials [blocks, dim] receives each block's dweight. The
// minimum of blocks limits registers to those of 8 warps per SM, each of which waits for up to
// 6 KiB, or of 20 warps if a thread has one pack.
template <typename T, int kPacks, bool kGated, bool kSilu>
__global__ void __launch_bounds__(kGradThreads, kPacks == 1 ? 5 : 2)
    NormBackwardKernel(NormGradRows<T> args, GradSchedule schedule, float* partials) {
  constexpr NormGate kGate = kSilu ? NormGate::kSilu : NormGate::kSigmoid;
  // Rows alternate between the two, so that one barrier per row is enough.
  HL_SHARED(partial, float[2][kGradWarps]);
  const GradPlace<T> place(schedule.lanes, args.dim);
  const int rows_per_block = kGradThreads / schedule.lanes;
  const int64_t stride = int64_t{1} * gridDim.x * rows_per_block;
  float dweight[kPacks][kPack<T>] = {};
  int turn = 0;
  int64_t first = int64_t{1} * blockIdx.x * rows_per_block;
  GradRow<T, kPacks, kGated> now, next;
  now.Fetch(args, place, first + place.group, schedule.aligned);
  for (; first < args.num_rows; first += stride, turn ^= 1) {
    if (first + stride < args.num_rows)
      next.Fetch(args, place, first + stride + place.group, schedule.aligned);
    const int64_t row = first + place.group, begin = row * args.dim;
    const bool valid = row < args.num_rows;
    T* const dgate = kGated ? args.dgate + args.dgate_place.of(row, args.dim) : nullptr;
    float mw[kPacks][kPack<T>], x[kPack<T>];
    float dot = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = place.column_of(p), count = place.dim - c;
      if (!valid || count <= 0) continue;
      Unpack(now.x[p], x);
      Unpack(now.dout[p], mw[p]);
      dot += DifferentiatePack<T, kGated, kGate>(kGated ? dgate + c : nullptr, now.other[p],
                                                 args.weight + c, count, schedule.aligned,
                                                 now.inverse_rms, x, mw[p], dweight[p]);
    }
    dot = GradRowSum(dot, place.lanes, partial[turn]);
    const float slope =
        dot * now.inverse_rms * now.inverse_rms * now.inverse_rms / static_cast<float>(place.dim);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = place.column_of(p), count = place.dim - c;
      if (!valid || count <= 0) continue;
      float dsum[kPack<T>] = {};
      Unpack(now.x[p], x);
      if constexpr (!kGated) Unpack(now.other[p], dsum);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) x[i] = mw[p][i] * now.inverse_rms - x[i] * slope + dsum[i];
      Store(args.dx + begin + c, count, schedule.aligned, x);
    }
    now = next;
  }
  StoreWeightSums<T, kPacks>(place, partials + blockIdx.x * args.dim, dweight);
}

// ---- the gradient of wider rows ----

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
    if (kStoresGate)
      Store(args.dgate + args.dgate_place.of(row, args.dim) + c, count, aligned, dgate);
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

// Grid: blocks that stride over the rows. Reads a row twice. partials [blocks, dim] holds each
// block's dweight, which is summed in place. The minimum of one block, where 0 means none, keeps
// the compiler from spilling registers for a higher occupancy.
template <typename T, bool kSilu>
__global__ void __launch_bounds__(kRowThreads, kSilu ? 0 : 1)
    WideNormBackwardKernel(NormGradRows<T> args, bool aligned, float* partials) {
  constexpr NormGate kGate = kSilu ? NormGate::kSilu : NormGate::kSigmoid;
  // Rows alternate between the two, so that one barrier per row is enough.
  HL_SHARED(partial, float[2][kMaxRowWarps]);
  const int dim = static_cast<int>(args.dim), step = static_cast<int>(blockDim.x) * kPack<T>;
  const int first = static_cast<int>(threadIdx.x) * kPack<T>;
  float* const mine = partials + blockIdx.x * args.dim;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.num_rows; row += gridDim.x, turn ^= 1) {
    const float inverse_rms = args.inverse_rms[row];
    Terms<T> terms;
    float dot = 0;
    for (int c = first; c < dim; c += step) {
      LoadTerms<T, kGate, true>(args, row, c, dim - c, aligned, inverse_rms, terms);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        dot += terms.mw[i] * terms.x[i];
        if (c + i < dim) mine[c + i] = row == blockIdx.x ? terms.mn[i] : mine[c + i] + terms.mn[i];
      }
    }
    dot = RowSum(dot, static_cast<int>(blockDim.x), partial[turn]);
    const float slope = dot * inverse_rms * inverse_rms * inverse_rms / static_cast<float>(dim);
    for (int c = first; c < dim; c += step) {
      LoadTerms<T, kGate, false>(args, row, c, dim - c, aligned, inverse_rms, terms);
      StoreInputGradient(args, row * args.dim + c, dim - c, aligned, inverse_rms, slope, terms);
    }
  }
}

// Launches the kernel for rows that fit in registers. Returns its number of blocks.
template <typename T, int kPacks>
int64_t LaunchGradient(const NormGradRows<T>& args, const GradSchedule& schedule, float* partials,
                       cudaStream_t stream) {
  // Each group of threads has at least this many rows, if there are that many: it reads ahead.
  constexpr int64_t kRowsOfGroup = 4;
  const int64_t most = kPacks == 1 ? cuda::kNormMaxBlocks : kMaxBlocksOfWideRows;
  const int64_t rows = kRowsOfGroup * schedule.rows_per_block();
  const int64_t blocks = std::min(most, (args.num_rows + rows - 1) / rows);
  // A kernel for each function: a choice within the kernel spills registers.
  const auto kernel = args.gate == nullptr ? NormBackwardKernel<T, kPacks, false, false>
                      : args.gate_kind == NormGate::kSilu
                          ? NormBackwardKernel<T, kPacks, true, true>
                          : NormBackwardKernel<T, kPacks, true, false>;
  Launch({dim3(static_cast<unsigned>(blocks)), dim3(kGradThreads), 0, "RMS norm's gradient"},
         stream, kernel, args, schedule, partials);
  return blocks;
}

template <typename T>
int64_t LaunchWideGradient(const NormGradRows<T>& args, bool aligned, float* partials,
                           cudaStream_t stream) {
  const RowShape shape = RowShapeOf<T>(std::max<int64_t>(args.dim, 33 * kPack<T>));
  const int64_t blocks = std::min(cuda::kNormMaxBlocks, args.num_rows);
  const auto kernel = args.gate_kind == NormGate::kSilu ? WideNormBackwardKernel<T, true>
                                                        : WideNormBackwardKernel<T, false>;
  Launch({dim3(static_cast<unsigned>(blocks)), dim3(shape.threads()), 0, "RMS norm's gradient"},
         stream, kernel, args, aligned, partials);
  return blocks;
}

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

}  // namespace

namespace cuda {

template <typename T>
void NormForward(const NormRows<T>& args, cudaStream_t stream) {
  const bool aligned =
      args.gate_place.gate_stride % kPack<T> == 0 &&
      Aligned16<T>(args.dim, args.x, args.residual, args.gate, args.weight, args.sum, args.out);
  LaunchRows<T>("RMS norm", NormForwardKernel<T>, args, 1, aligned, stream);
}

template <typename T>
void NormBackward(const NormGradRows<T>& args, float* dweight, bool added, float* workspace,
                  cudaStream_t stream) {
  if (args.dim == 0) return;
  CheckRowDim("RMS norm", args.dim);
  const bool aligned = args.gate_place.gate_stride % kPack<T> == 0 &&
                       args.dgate_place.gate_stride % kPack<T> == 0 &&
                       Aligned16<T>(args.dim, args.x, args.gate, args.weight, args.dout, args.dsum,
                                    args.dx, args.dgate);
  const GradSchedule schedule = ScheduleGradient<T>(args.dim, aligned);
  int64_t blocks = 0;
  if (args.num_rows > 0) {
    // A thread holds a pack of the gate or of dsum, not both.
    const bool wide = schedule.packs == 0 || (args.gate != nullptr && args.dsum != nullptr);
    blocks = wide ? LaunchWideGradient(args, aligned, workspace, stream)
             : schedule.packs == 1
                 ? LaunchGradient<T, 1>(args, schedule, workspace, stream)
                 : LaunchGradient<T, kPacksOfWideRow>(args, schedule, workspace, stream);
  }
  cuda::SumPartials(workspace, blocks, args.dim, dweight, stream, added);
}

template <typename T>
void UnitNormForward(const UnitNormArgs<T>& args, cudaStream_t stream) {
  bool aligned = true;
  for (const UnitNormPart<T>& part : args.parts)
    aligned = aligned && Aligned16<T>(args.dim, part.x, part.out);
  LaunchRows<T>("unit norm", UnitNormForwardKernel<T>, args, args.num_parts, aligned, stream);
}
template <typename T>
void UnitNormBackward(const UnitNormGradArgs<T>& args, cudaStream_t stream) {
  bool aligned = true;
  for (const UnitNormGradPart<T>& part : args.parts)
    aligned = aligned && Aligned16<T>(args.dim, part.out, part.dout, part.dx);
  LaunchRows<T>("unit norm's gradient", UnitNormBackwardKernel<T>, args, args.num_parts, aligned,
                stream);
}

template void NormForward(const NormRows<float>&, cudaStream_t);
template void NormForward(const NormRows<Bf16>&, cudaStream_t);
template void NormBackward(const NormGradRows<float>&, float*, bool, float*, cudaStream_t);
template void NormBackward(const NormGradRows<Bf16>&, float*, bool, float*, cudaStream_t);
template void UnitNormForward(const UnitNormArgs<float>&, cudaStream_t);
template void UnitNormForward(const UnitNormArgs<Bf16>&, cudaStream_t);
template void UnitNormBackward(const UnitNormGradArgs<float>&, cudaStream_t);
template void UnitNormBackward(const UnitNormGradArgs<Bf16>&, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
