// Decode: one token of every sequence, in fp32. A block has one value head of one sequence and 32
// columns of V. A thread has one column and every eighth row of the state, in registers, so the
// state is read and written once:
//
//   u = beta (v - k S~),  S = S~ + k^T u,  out = scale q S
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/delta_rule/cuda/products.cuh"
#include "kernels/delta_rule/delta_rule_args.h"

namespace halflife::kernels::delta {

constexpr int kStepColumns = 32, kStepGroups = 8, kStepThreads = kStepColumns * kStepGroups;

// Sums x over the thread groups of a column. The first step is a barrier.
HL_DEVICE float SumGroups(float x, float (&sums)[kStepGroups][kStepColumns], int group,
                          int column) {
  __syncthreads();
  sums[group][column] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kStepGroups; ++i) sum += sums[i][column];
  return sum;
}

template <typename T, int kK>
__global__ void __launch_bounds__(kStepThreads, kK == 256 ? 1 : 2)
    StepKernel(const DeltaRuleStepArgs args) {
  constexpr int kRows = kK / kStepGroups;
  HL_SHARED(operands, float[3][kK]);  // q, k, decay
  HL_SHARED(sums, float[kStepGroups][kStepColumns]);
  const int K = args.head_dim_k, V = args.head_dim_v;
  const int slices = (V + kStepColumns - 1) / kStepColumns;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kStepColumns;
  const int column = static_cast<int>(blockIdx.x % slices) * kStepColumns + thread % kStepColumns;
  const int head = static_cast<int>(blockIdx.x / slices % args.num_value_heads);
  const int64_t row = blockIdx.x / slices / args.num_value_heads;
  const int key_head = SharedHead(head, args.num_heads, args.num_value_heads);
  const auto at = [&](const TensorView& view, int h, int c) {
    return row * view.stride_b + h * view.stride_h + c;
  };
  for (int c = thread; c < kK; c += kStepThreads) {
    const bool exists = c < K;
    operands[0][c] =
        exists ? ToFloat(static_cast<const T*>(args.q.data)[at(args.q, key_head, c)]) : 0.0f;
    operands[1][c] =
        exists ? ToFloat(static_cast<const T*>(args.k.data)[at(args.k, key_head, c)]) : 0.0f;
    const int channel = args.decay == DeltaDecay::kPerTokenChannel ? c : 0;
    operands[2][c] =
        args.decay == DeltaDecay::kNone || !exists
            ? 1.0f
            : Exp2Approx(kLog2E * static_cast<const float*>(
                                      args.log_decay.data)[at(args.log_decay, head, channel)]);
  }
  __syncthreads();
  float* const state = static_cast<float*>(args.state) +
                       (row * args.num_value_heads + head) * (int64_t{1} * K * V) + column;
  float kept[kRows], read = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int c = i * kStepGroups + group;
    kept[i] = c < K && column < V ? state[int64_t{1} * c * V] * operands[2][c] : 0.0f;
    read += operands[1][c] * kept[i];
  }
  read = SumGroups(read, sums, group, thread % kStepColumns);
  const float v =
      column < V ? ToFloat(static_cast<const T*>(args.v.data)[at(args.v, head, column)]) : 0.0f;
  const float u = static_cast<const float*>(args.beta.data)[at(args.beta, head, 0)] * (v - read);
  float out = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int c = i * kStepGroups + group;
    kept[i] += operands[1][c] * u;
    out += operands[0][c] * kept[i];
    if (c < K && column < V) state[int64_t{1} * c * V] = kept[i];
  }
  out = SumGroups(out, sums, group, thread % kStepColumns);
  if (group == 0 && column < V)
    static_cast<T*>(args.out.data)[at(args.out, head, column)] =
        ToType<T>(static_cast<float>(args.scale) * out);
}

}  // namespace halflife::kernels::delta
