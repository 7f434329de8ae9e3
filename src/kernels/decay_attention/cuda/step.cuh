// One token of decay attention (decode): S = exp(log_decay) S + k^T v in place, out = scale q S.
// The kernel is bound by the memory traffic of the state.
//
// A block owns 64 columns of V of one head. Each thread handles one column and every fourth
// channel, so that rows of the state are read and written in units of 256 bytes. The normaliser's
// state is one vector per head, so with it one block owns all columns.
#pragma once

#include <type_traits>

#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/log_sigmoid.cuh"
#include "kernels/common/cuda/rows.cuh"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/decay_attention_partition.h"
#include "kernels/decay_attention/low_rank_step.h"

namespace halflife::kernels::decay {

constexpr int kStepColumns = 64, kStepRows = 4;

// Returns the log decay of a channel [Hd K] in row b. The sum has the order of RowProducts: packs
// of 8 in order, and their sums by a tree.
HL_DEVICE float LowRankLogDecay(const LowRankDecay& decay, int b, int channel) {
  constexpr int kPacks = kMaxDecayRank / 8;
  const Bf16* const hidden = decay.hidden + b * decay.hidden_stride;
  const Bf16* const weight = decay.weight + int64_t{1} * channel * decay.rank;
  float sums[kPacks] = {};
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) {
    if (8 * pack >= decay.rank) continue;
    float x[8], w[8];
    rows::Load(hidden + 8 * pack, 8, true, x);
    rows::Load(weight + 8 * pack, 8, true, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[pack] = fmaf(x[i], w[i], sums[pack]);
  }
#pragma unroll
  for (int count = kPacks / 2; count > 0; count /= 2) {
#pragma unroll
    for (int pack = 0; pack < count; ++pack) sums[pack] += sums[pack + count];
  }
  const float logit = rows::FromStorage(rows::Narrow<Bf16>(sums[0]));
  return rows::GateLogDecay(logit + decay.form.bias[channel], decay.form);
}

// kLowRank: the step computes the decays.
template <typename T, bool kLowRank>
__global__ void __launch_bounds__(kStepColumns* kStepRows)
    StepKernel(const DecayAttentionStepArgs args, const LowRankDecay low_rank) {
  HL_SHARED(queries, float[kMaxHeadDimK]);
  HL_SHARED(keys, float[kMaxHeadDimK]);
  HL_SHARED(changes, float[kMaxHeadDimK]);  // decay - 1: keeps the bits of a decay near 1
  HL_SHARED(sums, float[kStepRows][kStepColumns]);
  HL_SHARED(norms, float[kStepColumns * kStepRows / 32]);
  const int thread = static_cast<int>(threadIdx.x);
  const int b = static_cast<int>(blockIdx.x / args.num_heads);
  const int head = static_cast<int>(blockIdx.x % args.num_heads);
  const int K = args.head_dim_k, V = args.head_dim_v;
  const int column = thread % kStepColumns, first = thread / kStepColumns;
  const auto shared = [&](int num) { return SharedHead(head, num, args.num_heads); };
  const auto row = [&](const TensorView& view, int h) {
    return static_cast<T*>(view.data) + b * view.stride_b + h * view.stride_h;
  };
  T* const out = row(args.out, head);
  const auto put = [&](int v, float y) {
    if constexpr (std::is_same_v<T, bf16>) {
      out[v] = ToBf16(y);
    } else {
      out[v] = y;
    }
  };
  const int64_t slot = args.slots == nullptr ? b : args.slots[b];
  if (slot < 0) {  // a row without a slot: no state is accessed
    for (int v = static_cast<int>(blockIdx.y) * kStepColumns + column; v < V && first == 0;
         v += static_cast<int>(gridDim.y) * kStepColumns)
      put(v, 0.0f);
    return;
  }
  const bool normalised = args.norm_kind == NormKind::kSumOfKeys;
  float norm = 0;
  if (thread < K) {
    const T* const q = row(args.q, shared(args.num_q_heads));
    const T* const k = row(args.k, shared(args.num_k_heads));
    const float* const decay = static_cast<const float*>(args.log_decay.data);
    const int decay_head = shared(args.num_decay_heads);
    float log_decay = 0, key_scale = 1;
    const int width = IsPerChannel(args.decay_kind) ? K : 1;
    const int channel = IsPerChannel(args.decay_kind) ? thread : 0;
    if constexpr (kLowRank) {
      log_decay = LowRankLogDecay(low_rank, b, decay_head * K + thread);
    } else if (IsPerToken(args.decay_kind)) {
      const TensorView& view = args.log_decay;
      log_decay = decay[b * view.stride_b + decay_head * view.stride_h + channel];
    } else if (args.decay_kind != DecayKind::kNone) {
      log_decay = decay[int64_t{1} * decay_head * width + channel];
    }
    if (args.key_scale.data != nullptr)
      key_scale = static_cast<const float*>(
          args.key_scale.data)[b * args.key_scale.stride_b + head * args.key_scale.stride_h];
    queries[thread] = static_cast<float>(args.scale) * ToFloat(q[thread]);
    keys[thread] = key_scale * ToFloat(k[thread]);
    changes[thread] = expm1f(log_decay);
    if (normalised) {
      float* const z = static_cast<float*>(args.norm) + (slot * args.num_heads + head) * K + thread;
      *z = fmaf(changes[thread], *z, *z) + keys[thread];
      norm = queries[thread] * *z;
    }
  }
  norm = WarpSum(norm);
  if (thread % 32 == 0) norms[thread / 32] = norm;
  __syncthreads();
  float denom = static_cast<float>(args.norm_eps);
  for (int w = 0; w < kStepColumns * kStepRows / 32; ++w) denom += norms[w];
  const T* const values = row(args.v, shared(args.num_v_heads));
  float* const state = static_cast<float*>(args.state) + (slot * args.num_heads + head) * K * V;
  for (int base = static_cast<int>(blockIdx.y) * kStepColumns; base < V;
       base += static_cast<int>(gridDim.y) * kStepColumns) {
    const int v = base + column;
    float y = 0;
    if (v < V) {
      const float value = ToFloat(values[v]);
#pragma unroll 4
      for (int k = first; k < K; k += kStepRows) {
        float* const cell = state + k * V + v;
        const float old = *cell;
        const float now = fmaf(keys[k], value, fmaf(changes[k], old, old));
        *cell = now;
        y = fmaf(queries[k], now, y);
      }
    }
    sums[first][column] = y;
    __syncthreads();
    if (first == 0 && v < V) {
      float total = 0;
      for (int i = 0; i < kStepRows; ++i) total += sums[i][column];
      put(v, normalised ? total / denom : total);
    }
    __syncthreads();
  }
}

template <typename T, bool kLowRank>
void LaunchStep(const DecayAttentionStepArgs& args, const LowRankDecay& low_rank,
                cudaStream_t stream) {
  const bool normalised = args.norm_kind == NormKind::kSumOfKeys;
  const int tiles = (args.head_dim_v + kStepColumns - 1) / kStepColumns;
  constexpr const char* kName = "decay attention step";
  Launch({dim3(GridBlocks(int64_t{1} * args.batch * args.num_heads, kName),
               static_cast<unsigned>(normalised ? 1 : tiles)),
          kStepColumns * kStepRows, 0, kName},
         stream, StepKernel<T, kLowRank>, args, low_rank);
}
template <typename T>
void LaunchStep(const DecayAttentionStepArgs& args, cudaStream_t stream) {
  LaunchStep<T, false>(args, {}, stream);
}

}  // namespace halflife::kernels::decay
