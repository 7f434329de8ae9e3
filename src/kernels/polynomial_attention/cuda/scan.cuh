// Recurrent polynomial attention in fp32, one token at a time, for all d and V that the family
// supports, with fp32 and bf16 operands. The passes and their sides x and y are those of
// cpu/scan.h: a token of y is added to the state, then the token of x reads it.
//
// A block has kSliceColumns columns of V of one head of one sequence, and the column of weights w,
// so that every block computes the normaliser's sums. A thread has every kScanThreads-th feature of
// the block's state, which is in shared memory. Sums over V (dq, dk) are written as one partial sum
// per slice.
#pragma once

#include "kernels/common/cuda/chunk_rows.cuh"
#include "kernels/polynomial_attention/cuda/feature_pairs.cuh"
#include "kernels/polynomial_attention/cuda/launch.h"

namespace halflife::kernels::polynomial {

constexpr int kAllColumns = kSliceColumns + 1;  // the last one is w of y, or e of x
constexpr int kScanWarps = kScanThreads / 32;

struct ScanPlace {
  int slice, head, sequence;
  int64_t state;     // sequence x H + head
  int first, count;  // columns [first, first + count) of V
};
HL_DEVICE ScanPlace PlaceOf(const PolynomialAttentionArgs& args) {
  const int slices = (args.head_dim_v + kSliceColumns - 1) / kSliceColumns;
  ScanPlace place;
  place.slice = static_cast<int>(blockIdx.x) % slices;
  place.state = static_cast<int>(blockIdx.x) / slices;
  place.head = static_cast<int>(place.state % args.num_heads);
  place.sequence = static_cast<int>(place.state / args.num_heads);
  place.first = place.slice * kSliceColumns;
  place.count = min(kSliceColumns, args.head_dim_v - place.first);
  return place;
}

HL_DEVICE int64_t TokenIndex(const PolynomialAttentionArgs& args, const ChunkEntry& chunk,
                             int token, int head) {
  return (int64_t{1} * chunk.row * args.seq_len + chunk.token + token) * args.num_heads + head;
}

// One token of both sides, in shared memory.
struct TokenOperands {
  float* x;         // [d + 1], the last is 1
  float* y;         // [d + 1]
  float* x_values;  // [kAllColumns]  E and e
  float* y_values;  // [kAllColumns]  W and w
};

// Loads v and 1; zeros beyond the slice's columns.
template <typename T>
HL_DEVICE void LoadKeyValues(const PolynomialAttentionArgs& args, const ScanPlace& place,
                             const ChunkEntry& chunk, int token, float* values) {
  const int lane = LaneId();
  if (lane < kSliceColumns)
    values[lane] =
        lane < place.count ? Load<T>(args.v, chunk, token, place.head, place.first + lane) : 0.0f;
  if (lane == kSliceColumns) values[lane] = args.normalise ? 1.0f : 0.0f;
}
// Loads dn and dz. Called by one warp.
template <typename T>
HL_DEVICE void LoadOutputGradient(const PolynomialAttentionGradArgs& grads, const ScanPlace& place,
                                  const ChunkEntry& chunk, int token, float* values) {
  const PolynomialAttentionArgs& args = grads.forward;
  const int lane = LaneId();
  float delta = 0, denominator = 1;
  if (args.normalise) {
    for (int j = lane; j < args.head_dim_v; j += 32)
      delta = fmaf(Load<T>(grads.dout, chunk, token, place.head, j),
                   Load<T>(args.out, chunk, token, place.head, j), delta);
    denominator =
        static_cast<const float*>(args.norm_denom)[TokenIndex(args, chunk, token, place.head)];
  }
  delta = WarpSum(delta);
  if (lane < kSliceColumns)
    values[lane] =
        lane < place.count
            ? Load<T>(grads.dout, chunk, token, place.head, place.first + lane) / denominator
            : 0.0f;
  if (lane == kSliceColumns) values[lane] = args.normalise ? -delta / denominator : 0.0f;
}

template <typename T>
HL_DEVICE void LoadCoordinates(const TensorView& view, const ScanPlace& place,
                               const ChunkEntry& chunk, int token, int dim, float* to) {
  for (int a = LaneId(); a < dim; a += 32) to[a] = Load<T>(view, chunk, token, place.head, a);
}

// Warps 0 to 3 load x, y, E and W.
template <typename T, typename Pass>
HL_DEVICE void LoadToken(const PolynomialAttentionGradArgs& grads, const ScanPlace& place,
                         const ChunkEntry& chunk, int token, const TokenOperands& to) {
  const PolynomialAttentionArgs& args = grads.forward;
  constexpr bool kKeys = Pass::kKeys;
  switch (WarpId()) {
    case 0:
      return LoadCoordinates<T>(kKeys ? args.k : args.q, place, chunk, token, args.head_dim, to.x);
    case 1:
      return LoadCoordinates<T>(kKeys ? args.q : args.k, place, chunk, token, args.head_dim, to.y);
    case 2:
      if (Pass::kGradients && !kKeys)
        LoadOutputGradient<T>(grads, place, chunk, token, to.x_values);
      if (kKeys) LoadKeyValues<T>(args, place, chunk, token, to.x_values);
      // Only the first slice adds the gradient through the weights.
      if (Pass::kGradients && place.slice > 0 && LaneId() == kSliceColumns)
        to.x_values[kSliceColumns] = 0;
      return;
    case 3:
      if (kKeys) return LoadOutputGradient<T>(grads, place, chunk, token, to.y_values);
      return LoadKeyValues<T>(args, place, chunk, token, to.y_values);
    default:
      return;
  }
}

// Copy the slice's state between [kAllColumns, F] in shared memory and the caller's [F, V] and [F].
// A thread only accesses its own features.
HL_DEVICE void ClearState(float* state, int features) {
  for (int f = static_cast<int>(threadIdx.x); f < features; f += kScanThreads)
    for (int c = 0; c < kAllColumns; ++c) state[c * features + f] = 0;
}
HL_DEVICE void LoadState(const PolynomialAttentionArgs& args, const ScanPlace& place,
                         const void* from, const void* norm, int features, float* state) {
  for (int f = static_cast<int>(threadIdx.x); f < features; f += kScanThreads) {
    const int64_t row = place.state * features + f;
    for (int c = 0; c < place.count && from != nullptr; ++c)
      state[c * features + f] =
          static_cast<const float*>(from)[row * args.head_dim_v + place.first + c];
    if (norm != nullptr) state[kSliceColumns * features + f] = static_cast<const float*>(norm)[row];
  }
}
HL_DEVICE void StoreState(const PolynomialAttentionArgs& args, const ScanPlace& place,
                          const float* state, int features, void* to, void* norm) {
  for (int f = static_cast<int>(threadIdx.x); f < features; f += kScanThreads) {
    const int64_t row = place.state * features + f;
    for (int c = 0; c < place.count && to != nullptr; ++c)
      static_cast<float*>(to)[row * args.head_dim_v + place.first + c] = state[c * features + f];
    if (norm != nullptr && place.slice == 0)
      static_cast<float*>(norm)[row] = state[kSliceColumns * features + f];
  }
}

// Sums the columns over the features of all threads, in `sums` [kScanWarps][kAllColumns].
HL_DEVICE void SumOverFeatures(const float (&products)[kAllColumns], float (*sums)[kAllColumns]) {
#pragma unroll
  for (int c = 0; c < kAllColumns; ++c) {
    const float sum = WarpSum(products[c]);
    if (LaneId() == c) sums[WarpId()][c] = sum;
  }
}
HL_DEVICE float ColumnSum(float (*sums)[kAllColumns], int column) {
  float sum = 0;
  for (int w = 0; w < kScanWarps; ++w) sum += sums[w][column];
  return sum;
}

// Stores out and z + eps, or dv. The first threads do the work.
template <typename T, typename Pass>
HL_DEVICE void StoreOutput(const PolynomialAttentionGradArgs& grads, const ScanPlace& place,
                           const ChunkEntry& chunk, int token, float (*sums)[kAllColumns]) {
  const PolynomialAttentionArgs& args = grads.forward;
  const int column = static_cast<int>(threadIdx.x);
  if (column >= place.count) return;
  float y = ColumnSum(sums, column);
  if (!Pass::kGradients && args.normalise) {
    const float denominator = ColumnSum(sums, kSliceColumns) + static_cast<float>(args.norm_eps);
    y /= denominator;
    if (column == 0 && place.slice == 0 && args.norm_denom != nullptr)
      static_cast<float*>(args.norm_denom)[TokenIndex(args, chunk, token, place.head)] =
          denominator;
  }
  Store<T>(Pass::kGradients ? grads.dv : args.out, chunk, token, place.head, place.first + column,
           y);
}

// Stores the slice's contribution to dx_a, the sum over the features with x_a. Thread a does the
// work.
HL_DEVICE void StoreCoordinateGradient(const ScanParams& params, const ScanPlace& place,
                                       const FeatureLayout& layout, const ChunkEntry& chunk,
                                       int token, const float* x, const float* dfeatures) {
  const PolynomialAttentionArgs& args = params.grads.forward;
  const int a = static_cast<int>(threadIdx.x);
  if (a >= layout.dim) return;
  float sum = layout.has1 ? dfeatures[layout.order1 + a] : 0.0f;
  for (int b = 0; layout.has2 && b < layout.dim; ++b) {
    const float gradient = dfeatures[a < b ? layout.Pair(a, b) : layout.Pair(b, a)];
    sum = fmaf(a == b ? 2 * gradient : gradient, x[b], sum);
  }
  const int64_t tokens = int64_t{1} * args.batch * args.seq_len * args.num_heads;
  const int64_t row = place.slice * tokens + TokenIndex(args, chunk, token, place.head);
  params.partials[row * layout.dim + a] = sum;
}

template <typename T, typename Pass>
__global__ void __launch_bounds__(kScanThreads, kScanBlocksPerSm)
    ScanKernel(const ScanParams params) {
  constexpr bool kKeys = Pass::kKeys, kOutputs = Pass::kOutputs, kGradients = Pass::kGradients;
  const PolynomialAttentionGradArgs& grads = params.grads;
  const PolynomialAttentionArgs& args = grads.forward;
  const FeatureLayout layout(args.head_dim, args.weights);
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  float* const state = carver.Take<float>(kAllColumns * layout.count);
  float* const dfeatures = carver.Take<float>(layout.count);
  FeaturePair* const pairs = carver.Take<FeaturePair>(layout.count);
  HL_SHARED(coordinates, float[2][kMaxPolynomialDim + 1]);
  HL_SHARED(values, float[2][kAllColumns]);
  HL_SHARED(sums, float[kScanWarps][kAllColumns]);
  const TokenOperands at = {coordinates[0], coordinates[1], values[0], values[1]};
  const FloatWeights of_q = WeightsOf(QueryWeights(args.weights, args.scale)), of_k = {1, 1, 1, 1};
  const ScanPlace place = PlaceOf(args);
  const int begin = args.sequence_begin[place.sequence],
            end = args.sequence_begin[place.sequence + 1];

  if (threadIdx.x < 2) coordinates[threadIdx.x][layout.dim] = 1;
  FillPairs(layout, pairs);
  ClearState(state, layout.count);
  LoadState(args, place, kKeys ? grads.dfinal_state : args.initial_state,
            kKeys ? grads.dfinal_norm : args.initial_norm, layout.count, state);
#pragma unroll 1
  for (int i = 0; i < end - begin; ++i) {
    const ChunkEntry chunk = args.chunks[kKeys ? end - 1 - i : begin + i];
    const bool resets = (chunk.flags & kChunkResets) != 0;
    if (!kKeys && resets) ClearState(state, layout.count);
#pragma unroll 1
    for (int t = 0; t < chunk.length; ++t) {
      const int token = kKeys ? chunk.length - 1 - t : t;
      __syncthreads();
      LoadToken<T, Pass>(grads, place, chunk, token, at);
      __syncthreads();
      float products[kAllColumns] = {};
#pragma unroll 1
      for (int f = static_cast<int>(threadIdx.x); f < layout.count; f += kScanThreads) {
        const FeaturePair pair = pairs[f];
        const float of_y =
            WeightOf(kKeys ? of_q : of_k, pair, layout.dim) * at.y[pair.a] * at.y[pair.b];
        const float weight = WeightOf(kKeys ? of_k : of_q, pair, layout.dim);
        const float of_x = weight * at.x[pair.a] * at.x[pair.b];
        float gradient = 0;
#pragma unroll
        for (int c = 0; c < kAllColumns; ++c) {
          const float sum = fmaf(of_y, at.y_values[c], state[c * layout.count + f]);
          state[c * layout.count + f] = sum;
          if (kOutputs) products[c] = fmaf(of_x, sum, products[c]);
          if (kGradients) gradient = fmaf(sum, at.x_values[c], gradient);
        }
        if (kGradients) dfeatures[f] = gradient * weight;
      }
      if (kOutputs) SumOverFeatures(products, sums);
      __syncthreads();
      if (kOutputs) StoreOutput<T, Pass>(grads, place, chunk, token, sums);
      if (kGradients) StoreCoordinateGradient(params, place, layout, chunk, token, at.x, dfeatures);
    }
    if (kKeys && resets) ClearState(state, layout.count);
  }
  if (!kGradients) StoreState(args, place, state, layout.count, args.final_state, args.final_norm);
  if (kKeys)
    StoreState(args, place, state, layout.count, grads.dinitial_state, grads.dinitial_norm);
}

// Computes dx as the sum of its slices' contributions.
template <typename T>
__global__ void __launch_bounds__(kScanThreads)
    SumSlicesKernel(const PolynomialAttentionArgs args, const float* partials, int slices,
                    const TensorView dx) {
  const int64_t size = int64_t{1} * args.batch * args.seq_len * args.num_heads * args.head_dim;
  const int64_t i = int64_t{kScanThreads} * blockIdx.x + threadIdx.x;
  if (i >= size) return;
  float sum = partials[i];
  for (int slice = 1; slice < slices; ++slice) sum += partials[slice * size + i];
  const int a = static_cast<int>(i % args.head_dim);
  const int64_t token = i / args.head_dim / args.num_heads;
  ChunkEntry place = {};
  place.row = static_cast<int32_t>(token / args.seq_len);
  place.token = token % args.seq_len;
  Store<T>(dx, place, 0, static_cast<int>(i / args.head_dim % args.num_heads), a, sum);
}

}  // namespace halflife::kernels::polynomial
