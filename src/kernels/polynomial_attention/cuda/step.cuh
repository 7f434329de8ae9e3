// One token of polynomial attention (decoding): S += psi(k) v in place, out = psi(q) S. Limited by
// the memory bandwidth of the state.
//
// A block has one head, whose columns share the sum of similarities. A thread has one column of
// kStepColumns at a time and every fourth feature, so that rows of the state are read and written
// 256 bytes at a time.
#pragma once

#include <type_traits>

#include "kernels/polynomial_attention/cuda/feature_pairs.cuh"
#include "kernels/polynomial_attention/cuda/launch.h"

namespace halflife::kernels::polynomial {

template <typename T>
HL_DEVICE T* RowOf(const TensorView& view, int b, int head) {
  return static_cast<T*>(view.data) + b * view.stride_b + head * view.stride_h;
}

template <typename T>
__global__ void __launch_bounds__(kStepColumns* kStepRows, kStepBlocksPerSm)
    StepKernel(const PolynomialAttentionStepArgs args) {
  const FeatureLayout layout(args.head_dim, args.weights);
  HL_DYNAMIC_SMEM(smem);
  SmemCarver carver(smem);
  float* const of_q = carver.Take<float>(layout.count);
  float* const of_k = carver.Take<float>(layout.count);
  FeaturePair* const pairs = carver.Take<FeaturePair>(layout.count);
  HL_SHARED(coordinates, float[2][kMaxPolynomialDim + 1]);
  HL_SHARED(sums, float[kStepRows][kStepColumns]);
  HL_SHARED(norms, float[kStepColumns * kStepRows / 32]);
  const int thread = static_cast<int>(threadIdx.x), threads = kStepColumns * kStepRows;
  const int b = static_cast<int>(blockIdx.x) / args.num_heads;
  const int head = static_cast<int>(blockIdx.x) % args.num_heads;

  if (thread < layout.dim) {
    coordinates[0][thread] = ToFloat(RowOf<T>(args.q, b, head)[thread]);
    coordinates[1][thread] = ToFloat(RowOf<T>(args.k, b, head)[thread]);
  }
  if (thread < 2) coordinates[thread][layout.dim] = 1;
  FillPairs(layout, pairs);
  __syncthreads();
  const FloatWeights weights = WeightsOf(QueryWeights(args.weights, args.scale));
  float* const norm = static_cast<float*>(args.norm) + int64_t{1} * blockIdx.x * layout.count;
  float z = 0;
  for (int f = thread; f < layout.count; f += threads) {
    const FeaturePair pair = pairs[f];
    of_q[f] = WeightOf(weights, pair, layout.dim) * coordinates[0][pair.a] * coordinates[0][pair.b];
    of_k[f] = coordinates[1][pair.a] * coordinates[1][pair.b];
    if (args.normalise) z = fmaf(of_q[f], norm[f] += of_k[f], z);
  }
  z = WarpSum(z);
  if (LaneId() == 0) norms[WarpId()] = z;
  __syncthreads();
  float denominator = 1;
  if (args.normalise) {
    denominator = static_cast<float>(args.norm_eps);
    for (int w = 0; w < threads / 32; ++w) denominator += norms[w];
  }

  const int column = thread % kStepColumns, first = thread / kStepColumns, V = args.head_dim_v;
  float* const state = static_cast<float*>(args.state) + int64_t{1} * blockIdx.x * layout.count * V;
  for (int start = 0; start < V; start += kStepColumns) {
    const int v = start + column;
    float sum = 0;
    if (v < V) {
      const float value = ToFloat(RowOf<T>(args.v, b, head)[v]);
      for (int f = first; f < layout.count; f += kStepRows) {
        float& element = state[int64_t{1} * f * V + v];
        element = fmaf(of_k[f], value, element);
        sum = fmaf(of_q[f], element, sum);
      }
    }
    sums[first][column] = sum;
    __syncthreads();
    if (first == 0 && v < V) {
      for (int i = 1; i < kStepRows; ++i) sum += sums[i][column];
      const float y = sum / denominator;
      if constexpr (std::is_same_v<T, bf16>) {
        RowOf<T>(args.out, b, head)[v] = ToBf16(y);
      } else {
        RowOf<T>(args.out, b, head)[v] = y;
      }
    }
    __syncthreads();
  }
}

}  // namespace halflife::kernels::polynomial
