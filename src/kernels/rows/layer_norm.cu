#include "kernels/common/cuda/rows.cuh"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/layer_norm_args.h"

namespace halflife::kernels {
namespace {

using namespace rows;

static_assert(2 * kLayerNormParts <= cuda::kSumPlaces);

// Grid: blocks of rows x parts. Makes three passes over a row, which stays in the L1 cache: mean,
// deviation, output.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    LayerNormForwardKernel(LayerNormArgs<T> args, Schedule schedule) {
  HL_SHARED(partial, float[2][kMaxRowWarps]);
  const LayerNormPart<T> part = args.parts[blockIdx.y];
  const RowPlace<T> place(schedule, args.dim);
  const int64_t row = place.row(schedule);
  const bool valid = row < args.num_rows;
  const T* const x_row = part.x + part.place.of(row, args.dim);
  const auto width = static_cast<float>(place.dim);
  float x[kPack<T>];
  float sum = 0, squares = 0;
  for (int c = place.column; valid && c < place.dim; c += place.step) {
    Load(x_row + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sum += x[i];  // zeros past the end
  }
  const float mean = RowSum(sum, schedule.lanes, partial[0]) / width;
  for (int c = place.column; valid && c < place.dim; c += place.step) {
    Load(x_row + c, place.dim - c, schedule.aligned, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i)
      if (c + i < place.dim) squares += (x[i] - mean) * (x[i] - mean);
  }
  squares = RowSum(squares, schedule.lanes, partial[1]);
  if (!valid) return;
  const float factor = 1.0f / sqrtf(squares / width + args.eps);
  if (place.column == 0) part.mean[row] = mean, part.factor[row] = factor;
  for (int c = place.column; c < place.dim; c += place.step) {
    const int count = place.dim - c;
    float gamma[kPack<T>], beta[kPack<T>] = {};
    Load(x_row + c, count, schedule.aligned, x);
    LoadFloats(part.gamma + c, count, schedule.aligned, gamma);
    if (part.beta != nullptr) LoadFloats(part.beta + c, count, schedule.aligned, beta);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x[i] = (x[i] - mean) * factor * gamma[i] + beta[i];
    Store(part.out + row * args.dim + c, count, schedule.aligned, x);
  }
}

// Values of one pack of a row: n, dout, and m = dout gamma; zeros past a row's end.
template <typename T>
struct Terms {
  float n[kPack<T>], dy[kPack<T>], m[kPack<T>];
};
template <typename T>
HL_DEVICE void LoadTerms(const LayerNormGradPart<T>& part, int64_t row, int c, int dim,
                         bool aligned, float mean, float factor, Terms<T>& terms) {
  const int count = dim - c;
  float gamma[kPack<T>];
  Load(part.x + part.place.of(row, dim) + c, count, aligned, terms.n);
  Load(part.dout + row * dim + c, count, aligned, terms.dy);
  LoadFloats(part.gamma + c, count, aligned, gamma);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    terms.n[i] = (terms.n[i] - mean) * factor;
    terms.m[i] = terms.dy[i] * gamma[i];
  }
}

// Stores a block's sums over rows for gamma, [dim], then for beta, for threads that have one pack
// each, through `columns`. All threads of the block must take part.
template <typename T>
HL_DEVICE void StoreSums(const RowPlace<T>& place, const Schedule& schedule,
                         const float (&of_gamma)[kPack<T>], const float (&of_beta)[kPack<T>],
                         float* columns, float* mine) {
  for (int which = 0; which < 2; ++which) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i)
      columns[threadIdx.x * kPack<T> + i] = which == 0 ? of_gamma[i] : of_beta[i];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < place.dim; c += static_cast<int>(blockDim.x)) {
      float sum = 0;
      for (int group = 0; group < schedule.rows_per_block; ++group)
        sum += columns[group * place.step + c];
      mine[which * place.dim + c] = sum;
    }
  }
}

// Grid: at most kLayerNormMaxBlocks blocks that stride over rows x parts. partials [blocks, parts,
// 2, dim] receives each block's sums for gamma and beta. They are summed in registers if a thread
// has one pack, and in `partials` otherwise. The launch bound of at least one block per
// multiprocessor makes nvcc keep everything in registers; without it, nvcc spilled to fit a second
// block.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, 1)
    LayerNormBackwardKernel(LayerNormGradArgs<T> args, Schedule schedule, float* partials) {
  HL_SHARED(partial, float[2][kMaxRowWarps]);  // each one is read before the barrier of the other
  HL_SHARED(columns, float[kRowThreads * kPack<T>]);
  const LayerNormGradPart<T> part = args.parts[blockIdx.y];
  const RowPlace<T> place(schedule, args.dim);
  const auto width = static_cast<float>(place.dim);
  float* const mine =
      partials + (int64_t{1} * blockIdx.x * args.num_parts + blockIdx.y) * 2 * args.dim;
  float of_gamma[kPack<T>] = {}, of_beta[kPack<T>] = {};
  const int64_t stride = int64_t{1} * gridDim.x * schedule.rows_per_block;
  for (int64_t first = int64_t{1} * blockIdx.x * schedule.rows_per_block; first < args.num_rows;
       first += stride) {
    const int64_t row = first + place.group;
    const bool valid = row < args.num_rows;
    const float mean = valid ? part.mean[row] : 0.0f, factor = valid ? part.factor[row] : 0.0f;
    Terms<T> terms;
    float sum = 0, dot = 0;
    for (int c = place.column; valid && c < place.dim; c += place.step) {
      LoadTerms(part, row, c, place.dim, schedule.aligned, mean, factor, terms);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        sum += terms.m[i], dot += terms.m[i] * terms.n[i];
        if (place.once) {
          of_gamma[i] += terms.dy[i] * terms.n[i], of_beta[i] += terms.dy[i];
        } else if (c + i < place.dim) {
          float *const gamma = mine + c + i, *const beta = gamma + place.dim;
          *gamma = terms.dy[i] * terms.n[i] + (first < stride ? 0.0f : *gamma);
          *beta = terms.dy[i] + (first < stride ? 0.0f : *beta);
        }
      }
    }
    const float level = RowSum(sum, schedule.lanes, partial[0]) / width;
    const float along = RowSum(dot, schedule.lanes, partial[1]) / width;
    for (int c = place.column; valid && c < place.dim; c += place.step) {
      if (!place.once) LoadTerms(part, row, c, place.dim, schedule.aligned, mean, factor, terms);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i)
        terms.m[i] = factor * (terms.m[i] - level - terms.n[i] * along);
      Store(part.dx + part.dx_place.of(row, args.dim) + c, place.dim - c, schedule.aligned,
            terms.m);
    }
  }
  if (place.once) StoreSums<T>(place, schedule, of_gamma, of_beta, columns, mine);
}

// Returns true if every part allows 16-byte accesses.
template <typename T>
bool IsAligned(const LayerNormArgs<T>& args) {
  bool aligned = true;
  for (int i = 0; i < args.num_parts; ++i) {
    const LayerNormPart<T>& part = args.parts[i];
    aligned = aligned && part.place.stride % kPack<T> == 0 &&
              Aligned16<T>(args.dim, part.x, part.gamma, part.beta, part.out);
  }
  return aligned;
}
template <typename T>
bool IsAligned(const LayerNormGradArgs<T>& args) {
  bool aligned = true;
  for (int i = 0; i < args.num_parts; ++i) {
    const LayerNormGradPart<T>& part = args.parts[i];
    aligned = aligned && part.place.stride % kPack<T> == 0 &&
              part.dx_place.stride % kPack<T> == 0 &&
              Aligned16<T>(args.dim, part.x, part.gamma, part.dout, part.dx);
  }
  return aligned;
}

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

}  // namespace

namespace cuda {

template <typename T>
void LayerNormForward(const LayerNormArgs<T>& args, cudaStream_t stream) {
  LaunchRows<T>("layer norm", LayerNormForwardKernel<T>, args, args.num_parts, IsAligned(args),
                stream);
}

template <typename T>
void LayerNormBackward(const LayerNormGradArgs<T>& args, float* partials, cudaStream_t stream) {
  if (args.dim == 0 || args.num_parts == 0) return;
  CheckRowDim("layer norm", args.dim);
  const RowShape shape = RowShapeOf<T>(args.dim);
  const int64_t blocks = std::min(
      cuda::kLayerNormMaxBlocks, (args.num_rows + shape.rows_per_block - 1) / shape.rows_per_block);
  if (blocks > 0)
    Launch({dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(args.num_parts)),
            dim3(shape.threads()), 0, "layer norm's gradient"},
           stream, LayerNormBackwardKernel<T>, args,
           Schedule{shape.lanes, shape.rows_per_block, IsAligned(args)}, partials);
  cuda::SumPlaces sums;
  for (int i = 0; i < args.num_parts; ++i) {
    const LayerNormGradPart<T>& part = args.parts[i];
    sums.places[2 * i] = {part.dgamma, args.dim, part.gamma_added};
    sums.places[2 * i + 1] = {part.dbeta, args.dim, part.beta_added};
  }
  cuda::SumPartials(partials, blocks, sums, stream);
}

template <typename T>
void RealNormForward(const RealNormRows<T>& args, cudaStream_t stream) {
  LaunchRows<T>("standardising", RealNormForwardKernel<T>, args, 1,
                Aligned16<T>(args.dim, args.x, args.out), stream);
}
template <typename T>
void RealNormBackward(const RealNormGradRows<T>& args, cudaStream_t stream) {
  LaunchRows<T>("standardising's gradient", RealNormBackwardKernel<T>, args, 1,
                Aligned16<T>(args.dim, args.out, args.dout, args.dx), stream);
}

template void LayerNormForward(const LayerNormArgs<float>&, cudaStream_t);
template void LayerNormForward(const LayerNormArgs<Bf16>&, cudaStream_t);
template void LayerNormBackward(const LayerNormGradArgs<float>&, float*, cudaStream_t);
template void LayerNormBackward(const LayerNormGradArgs<Bf16>&, float*, cudaStream_t);
template void RealNormForward(const RealNormRows<float>&, cudaStream_t);
template void RealNormForward(const RealNormRows<Bf16>&, cudaStream_t);
template void RealNormBackward(const RealNormGradRows<float>&, cudaStream_t);
template void RealNormBackward(const RealNormGradRows<Bf16>&, cudaStream_t);

}  // namespace cuda
}  // namespace halflife::kernels
