// Decay attention token by token in fp32: every kind of decay, the normaliser, fp32 and bf16
// operands, any K, V <= 256. Slower than the scans on tensor cores; it is what has no instance
// there.
//
// A thread owns a key channel and kSimtColumns columns of its row of the state, in registers, so
// that what is summed over V (dq, dk, the decay's gradient) is a thread's own, and what is summed
// over K (out, dv) goes through a shuffle tree and shared memory. The normaliser is one more column
// of v, of ones.
//
// A decay near 1 enters as S += expm1(log_decay) S: 1 - 1e-6 rounded to fp32 would be off by 3e-8
// at every token, in one direction.
#pragma once

#include <type_traits>

#include "kernels/cuda/grid_blocks.h"
#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

struct SimtPlace {
  int sequence, head, slice, begin, end;
  int channel, columns;  // the thread's channel; columns of V that exist in the slice's range
  int64_t state;
};

template <typename T>
HL_DEVICE float Load(const TensorView& view, const ChunkEntry& chunk, int token, int head,
                     int column) {
  return ToFloat(static_cast<const T*>(
      view.data)[chunk.row * view.stride_b + (chunk.token + token) * view.stride_t +
                 head * view.stride_h + column]);
}
template <typename T>
HL_DEVICE void Store(const TensorView& view, const ChunkEntry& chunk, int token, int head,
                     int column, float x) {
  T* const target = static_cast<T*>(view.data) + chunk.row * view.stride_b +
                    (chunk.token + token) * view.stride_t + head * view.stride_h + column;
  if constexpr (std::is_same_v<T, bf16>) {
    *target = ToBf16(x);
  } else {
    *target = x;
  }
}
// S * exp(log_decay) as keep S + change S. Near 1 the change is what counts; near 0 it would
// cancel.
struct DecayStep {
  float keep, change;
};
HL_DEVICE DecayStep DecayStepOf(float log_decay) {
  DecayStep step;
  const bool small = log_decay < -0.5f;
  step.keep = small ? 0.0f : 1.0f;
  step.change = small ? expf(log_decay) : expm1f(log_decay);
  return step;
}
HL_DEVICE float Decayed(const DecayStep& step, float x) {
  return fmaf(step.change, x, step.keep * x);
}

HL_DEVICE int SimtThreads(int head_dim_k) { return (head_dim_k + 31) / 32 * 32; }

HL_DEVICE SimtPlace SimtPlaceOf(const DecayAttentionArgs& args, int num_slices) {
  SimtPlace place;
  int64_t index = blockIdx.x;
  place.slice = static_cast<int>(index % num_slices);
  index /= num_slices;
  place.head = static_cast<int>(index % args.num_heads);
  place.sequence = static_cast<int>(index / args.num_heads);
  place.begin = args.sequence_begin[place.sequence];
  place.end = args.sequence_begin[place.sequence + 1];
  place.channel = static_cast<int>(threadIdx.x);
  place.columns = 0;
  place.state = int64_t{1} * place.sequence * args.num_heads + place.head;
  return place;
}

// Where the columns of a slice come from: V itself, the normaliser's column of ones, or nowhere.
struct SimtColumns {
  int first, count;  // columns [first, first + count) of V
  int ones;          // index within the slice, or -1
};
HL_DEVICE SimtColumns ColumnsOf(const DecayAttentionArgs& args, int slice, bool ones_in_each) {
  const bool normalised = args.norm_kind == NormKind::kSumOfKeys;
  SimtColumns columns;
  const int width = normalised && ones_in_each ? kSimtColumns - 1 : kSimtColumns;
  columns.first = slice * width;
  columns.count = max(0, min(width, args.head_dim_v - columns.first));
  columns.ones = -1;
  if (normalised && ones_in_each) columns.ones = kSimtColumns - 1;
  if (normalised && !ones_in_each && args.head_dim_v - columns.first < kSimtColumns)
    columns.ones = args.head_dim_v - columns.first;
  return columns;
}

// The thread's row of a state [K, V] and of its norm [K]; both may be null.
HL_DEVICE void LoadStateRow(float (&row)[kSimtColumns], const void* state, const void* norm,
                            int64_t owner, const DecayAttentionArgs& args,
                            const SimtColumns& columns, int channel) {
  const bool live = channel < args.head_dim_k;
  const float* const values = static_cast<const float*>(state) +
                              (owner * args.head_dim_k + channel) * args.head_dim_v + columns.first;
#pragma unroll
  for (int c = 0; c < kSimtColumns; ++c) {
    row[c] = 0;
    if (live && state != nullptr && c < columns.count) row[c] = values[c];
    if (live && norm != nullptr && c == columns.ones)
      row[c] = static_cast<const float*>(norm)[owner * args.head_dim_k + channel];
  }
}
HL_DEVICE void StoreStateRow(const float (&row)[kSimtColumns], void* state, void* norm,
                             int64_t owner, const DecayAttentionArgs& args,
                             const SimtColumns& columns, int channel) {
  if (channel >= args.head_dim_k) return;
  float* const values = static_cast<float*>(state) +
                        (owner * args.head_dim_k + channel) * args.head_dim_v + columns.first;
#pragma unroll
  for (int c = 0; c < kSimtColumns; ++c) {
    if (state != nullptr && c < columns.count) values[c] = row[c];
    if (norm != nullptr && c == columns.ones)
      static_cast<float*>(norm)[owner * args.head_dim_k + channel] = row[c];
  }
}

// One barrier a token: v of token t and sums of token t - 1 go to buffers that the next token does
// not touch.
template <typename T>
__global__ void __launch_bounds__(kMaxHeadDim, 1) SimtScanKernel(const SimtScanParams params) {
  const DecayAttentionArgs& args = params.args;
  HL_SHARED(values, float[2][kSimtColumns]);
  HL_SHARED(sums, float[2][kMaxHeadDim / 32][kSimtColumns]);
  const bool output = params.mode == SimtMode::kOutput;
  const bool normalised = args.norm_kind == NormKind::kSumOfKeys;
  const int width = normalised && output ? kSimtColumns - 1 : kSimtColumns;
  const int num_slices = (args.head_dim_v + (normalised && !output ? 1 : 0) + width - 1) / width;
  const SimtPlace place = SimtPlaceOf(args, num_slices);
  const SimtColumns columns = ColumnsOf(args, place.slice, output);
  const int channel = place.channel, num_warps = SimtThreads(args.head_dim_k) / 32;
  const bool live = channel < args.head_dim_k;
  const int q_head = SharedHead(place.head, args.num_heads, args.num_q_heads);
  const int k_head = SharedHead(place.head, args.num_heads, args.num_k_heads);
  const int v_head = SharedHead(place.head, args.num_heads, args.num_v_heads);
  const int decay_head = SharedHead(place.head, args.num_heads, args.num_decay_heads);
  const int decay_channel = IsPerChannel(args.decay_kind) ? channel : 0;
  const int lane = LaneId();

  float state[kSimtColumns];
  const bool carries = params.mode != SimtMode::kSummary;
  LoadStateRow(state, carries ? args.initial_state : nullptr, carries ? args.initial_norm : nullptr,
               place.state, args, columns, channel);
  float log_transition = 0;

  // Sums over the warps, the normaliser, and the store, by the first warp.
  const auto finish = [&](const ChunkEntry& chunk, int token, int buffer) {
    if (WarpId() != 0) return;
    float y = 0;
    for (int w = 0; w < num_warps; ++w) y += sums[buffer][w][lane];
    if (normalised) {
      const float denom =
          __shfl_sync(kFullWarp, y, kSimtColumns - 1) + static_cast<float>(args.norm_eps);
      y /= denom;
      if (lane == 0 && place.slice == 0 && args.norm_denom != nullptr)
        static_cast<float*>(args.norm_denom)[FlatRow(args, chunk, token, place.head)] = denom;
    }
    if (lane < columns.count) Store<T>(args.out, chunk, token, place.head, columns.first + lane, y);
  };

  int parity = 0;
  ChunkEntry last_chunk = {};
  int last_token = -1;
#pragma unroll 1
  for (int index = place.begin; index < place.end; ++index) {
    const ChunkEntry chunk = args.chunks[index];
    if ((chunk.flags & kChunkResets) != 0) {
#pragma unroll
      for (int c = 0; c < kSimtColumns; ++c) state[c] = 0;
      log_transition = __uint_as_float(0xff800000u);
    }
    if (params.mode == SimtMode::kStates && live) {
      const int stride = args.head_dim_v + (normalised ? 1 : 0);
      float* const target =
          params.states +
          ((int64_t{1} * index * args.num_heads + place.head) * args.head_dim_k + channel) *
              stride +
          columns.first;
#pragma unroll
      for (int c = 0; c < kSimtColumns; ++c)
        if (c < columns.count || c == columns.ones) target[c] = state[c];
    }
#pragma unroll 1
    for (int token = 0; token < chunk.length; ++token) {
      if (WarpId() == 0) {
        float v = 0;
        if (lane < columns.count) v = Load<T>(args.v, chunk, token, v_head, columns.first + lane);
        if (lane == columns.ones) v = 1;
        values[parity][lane] = v;
      }
      float q = 0, k = 0, decay = 0;
      if (live) {
        if (output)
          q = static_cast<float>(args.scale) * Load<T>(args.q, chunk, token, q_head, channel);
        k = Load<T>(args.k, chunk, token, k_head, channel) *
            KeyScaleAt(args, chunk, token, place.head);
        decay = LogDecayAt(args, chunk, token, decay_head, decay_channel);
      }
      log_transition += decay;
      const DecayStep step = DecayStepOf(decay);
      __syncthreads();
      if (output && last_token >= 0) finish(last_chunk, last_token, 1 - parity);
      float products[kSimtColumns];
#pragma unroll
      for (int c = 0; c < kSimtColumns; ++c) {
        state[c] = Decayed(step, state[c]);
        state[c] = fmaf(k, values[parity][c], state[c]);
        products[c] = q * state[c];
      }
      if (output) sums[parity][WarpId()][lane] = SumOverLanes(products);
      parity = 1 - parity;
      last_chunk = chunk;
      last_token = token;
    }
  }
  if (output) {
    __syncthreads();
    if (last_token >= 0) finish(last_chunk, last_token, 1 - parity);
  }
  // With ones in each slice, one of them stores the norm.
  const bool stores_norm = !output || place.slice == 0;
  if (params.mode != SimtMode::kStates)
    StoreStateRow(state, args.final_state, stores_norm ? args.final_norm : nullptr, place.state,
                  args, columns, channel);
  if (params.log_transition != nullptr && place.slice == 0) {
    if (IsPerChannel(args.decay_kind)) {
      if (live) params.log_transition[place.state * args.head_dim_k + channel] = log_transition;
    } else if (channel == 0) {
      params.log_transition[place.state] = log_transition;
    }
  }
}

// D_t = dL/d(log_decay_t) = sum_v decay_t S_{t-1} R_t, R_t after q_t has been added, runs backwards
// as
//   D_t = D_{t+1} + q_t (scale decay_t S_{t-1} dout_t) - k_t (decay_{t+1} R_{t+1} v_t)
// anew in each chunk, so that no difference runs over more of them. What a token's own key gives to
// its own query (k_t v_t dout_t q_t) is in neither term: with strong decays it is far larger than
// D. For the same reason the chunk's last D is summed as it stands, without the last key.
template <typename T>
__global__ void __launch_bounds__(kMaxHeadDim, 1)
    SimtReverseScanKernel(const SimtReverseScanParams params) {
  const DecayAttentionGradArgs& grads = params.grads;
  const DecayAttentionArgs& args = grads.forward;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  const int num_warps = SimtThreads(args.head_dim_k) / 32;
  float* const values = carver.Take<float>(kChunk * kSimtColumns);
  float* const douts = carver.Take<float>(kChunk * kSimtColumns);
  float* const dv_sums = carver.Take<float>(kChunk * num_warps * kSimtColumns);
  float* const scale_sums = carver.Take<float>(kChunk * num_warps);
  float* const decay_sums = carver.Take<float>(kChunk * num_warps);
  float* const own = carver.Take<float>(kChunk);  // v_t dout_t

  const bool normalised = args.norm_kind == NormKind::kSumOfKeys;
  const int stride = args.head_dim_v + (normalised ? 1 : 0);
  const int num_slices = (stride + kSimtColumns - 1) / kSimtColumns;
  const SimtPlace place = SimtPlaceOf(args, num_slices);
  const SimtColumns columns = ColumnsOf(args, place.slice, false);
  const int channel = place.channel, lane = LaneId(), warp = WarpId();
  const bool live = channel < args.head_dim_k;
  const bool per_channel = IsPerChannel(args.decay_kind);
  const int q_head = SharedHead(place.head, args.num_heads, args.num_q_heads);
  const int k_head = SharedHead(place.head, args.num_heads, args.num_k_heads);
  const int v_head = SharedHead(place.head, args.num_heads, args.num_v_heads);
  const int decay_head = SharedHead(place.head, args.num_heads, args.num_decay_heads);
  const int64_t slice_rows = int64_t{1} * args.batch * args.seq_len * args.num_heads * place.slice;

  float adjoint[kSimtColumns];
  LoadStateRow(adjoint, params.summary ? nullptr : grads.dfinal_state,
               params.summary ? nullptr : grads.dfinal_norm, place.state, args, columns, channel);
  float dlambda = 0;
#pragma unroll 1
  for (int index = place.end - 1; index >= place.begin; --index) {
    const ChunkEntry chunk = args.chunks[index];
    __syncthreads();  // the sums of the chunk before have been read
#pragma unroll 1
    for (int i = channel; i < chunk.length * kSimtColumns; i += 32 * num_warps) {
      const int token = i / kSimtColumns, c = i % kSimtColumns;
      float v = 0, dout = 0;
      if (c < columns.count) {
        v = Load<T>(args.v, chunk, token, v_head, columns.first + c);
        dout = Load<T>(grads.dout, chunk, token, place.head, columns.first + c);
        if (normalised)
          dout /=
              static_cast<const float*>(args.norm_denom)[FlatRow(args, chunk, token, place.head)];
      } else if (c == columns.ones) {
        v = 1;
        dout = params.dnorm[FlatRow(args, chunk, token, place.head)];
      }
      values[i] = v;
      douts[i] = dout;
    }
    __syncthreads();
    float through = 0;
    if (!params.summary) {
#pragma unroll 1
      for (int token = channel; token < chunk.length; token += 32 * num_warps) {
        float sum = 0;
#pragma unroll 1
        for (int c = 0; c < kSimtColumns; ++c) {
          const int i = token * kSimtColumns + (c + token) % kSimtColumns;  // lanes in other banks
          sum = fmaf(values[i], douts[i], sum);
        }
        own[token] = sum;
      }
      __syncthreads();
      float state[kSimtColumns];
      const float* const source =
          params.states +
          ((int64_t{1} * index * args.num_heads + place.head) * args.head_dim_k + channel) *
              stride +
          columns.first;
#pragma unroll
      for (int c = 0; c < kSimtColumns; ++c)
        state[c] = live && (c < columns.count || c == columns.ones) ? source[c] : 0.0f;
      float key = 0;  // of the token before, which enters only now
#pragma unroll 1
      for (int token = 0; live && token < chunk.length; ++token) {
        const DecayStep step =
            DecayStepOf(LogDecayAt(args, chunk, token, decay_head, per_channel ? channel : 0));
        float dq = 0;
#pragma unroll
        for (int c = 0; c < kSimtColumns; ++c) {
          state[c] = fmaf(key, values[max(token - 1, 0) * kSimtColumns + c], state[c]);
          state[c] = Decayed(step, state[c]);
          dq = fmaf(state[c], douts[token * kSimtColumns + c], dq);
        }
        params.dq[(slice_rows + FlatRow(args, chunk, token, place.head)) * args.head_dim_k +
                  channel] = dq;  // without the token's own key, as yet
        key = Load<T>(args.k, chunk, token, k_head, channel) *
              KeyScaleAt(args, chunk, token, place.head);
      }
#pragma unroll
      for (int c = 0; c < kSimtColumns; ++c) through = fmaf(state[c], adjoint[c], through);
    }
    const bool resets = (chunk.flags & kChunkResets) != 0;
#pragma unroll 1
    for (int token = chunk.length - 1; token >= 0; --token) {
      const int64_t row = slice_rows + FlatRow(args, chunk, token, place.head);
      float q = 0, k = 0, decay = 0;
      if (live) {
        q = Load<T>(args.q, chunk, token, q_head, channel);
        k = Load<T>(args.k, chunk, token, k_head, channel);
        decay = LogDecayAt(args, chunk, token, decay_head, per_channel ? channel : 0);
      }
      const float key_scale = KeyScaleAt(args, chunk, token, place.head);
      const bool cut = (resets && token == 0) || __float_as_uint(decay) == 0xff800000u;  // -inf
      const float query = static_cast<float>(args.scale) * q;
      float dk = 0;
      float products[kSimtColumns];
#pragma unroll
      for (int c = 0; c < kSimtColumns; ++c) {
        dk = fmaf(adjoint[c], values[token * kSimtColumns + c], dk);
        adjoint[c] = fmaf(query, douts[token * kSimtColumns + c], adjoint[c]);
        products[c] = adjoint[c] * (k * key_scale);
      }
      if (!params.summary) {
        dv_sums[(token * num_warps + warp) * kSimtColumns + lane] = SumOverLanes(products);
        const int64_t at = row * args.head_dim_k + channel;
        if (live) {
          const float dq = params.dq[at];
          if (token + 1 < chunk.length) through -= k * key_scale * dk;
          through += query * dq;
          dk = fmaf(query, own[token], dk);
          params.dq[at] = static_cast<float>(args.scale) * fmaf(k * key_scale, own[token], dq);
          params.dk[at] = key_scale * dk;
        }
        if (cut) through = 0;
        dlambda += through;
        if (params.dlog_decay != nullptr && per_channel && live) params.dlog_decay[at] = through;
        if (params.dlog_decay != nullptr && !per_channel) {
          const float sum = WarpSum(through);
          if (lane == 0) decay_sums[token * num_warps + warp] = sum;
        }
        if (params.dkey_scale != nullptr) {
          const float sum = WarpSum(k * dk);
          if (lane == 0) scale_sums[token * num_warps + warp] = sum;
        }
      }
      const DecayStep step = DecayStepOf(decay);
#pragma unroll
      for (int c = 0; c < kSimtColumns; ++c)
        adjoint[c] = resets && token == 0 ? 0.0f : Decayed(step, adjoint[c]);
    }
    if (params.summary) continue;
    __syncthreads();
#pragma unroll 1
    for (int i = channel; i < chunk.length * kSimtColumns; i += 32 * num_warps) {
      const int token = i / kSimtColumns, c = i % kSimtColumns;
      if (c >= columns.count) continue;
      float sum = 0;
      for (int w = 0; w < num_warps; ++w)
        sum += dv_sums[(token * num_warps + w) * kSimtColumns + c];
      params.dv[FlatRow(args, chunk, token, place.head) * args.head_dim_v + columns.first + c] =
          sum;
    }
#pragma unroll 1
    for (int token = channel; token < chunk.length; token += 32 * num_warps) {
      const int64_t row = slice_rows + FlatRow(args, chunk, token, place.head);
      float decay = 0, scale = 0;
      for (int w = 0; w < num_warps; ++w) {
        if (params.dlog_decay != nullptr && !per_channel)
          decay += decay_sums[token * num_warps + w];
        if (params.dkey_scale != nullptr) scale += scale_sums[token * num_warps + w];
      }
      if (params.dlog_decay != nullptr && !per_channel) params.dlog_decay[row] = decay;
      if (params.dkey_scale != nullptr) params.dkey_scale[row] = scale;
    }
  }
  StoreStateRow(adjoint, grads.dinitial_state, grads.dinitial_norm, place.state, args, columns,
                channel);
  if (params.dlambda != nullptr) {
    const int64_t piece = place.state * num_slices + place.slice;
    if (per_channel) {
      if (live) params.dlambda[piece * args.head_dim_k + channel] = dlambda;
    } else {
      __syncthreads();
      const float sum = WarpSum(dlambda);
      if (lane == 0) decay_sums[warp] = sum;
      __syncthreads();
      if (channel == 0) {
        float total = 0;
        for (int w = 0; w < num_warps; ++w) total += decay_sums[w];
        params.dlambda[piece] = total;
      }
    }
  }
}

// A warp a row.
template <typename T>
__global__ void __launch_bounds__(128)
    SimtNormGradientKernel(const DecayAttentionGradArgs grads, float* dnorm) {
  const DecayAttentionArgs& args = grads.forward;
  const int64_t row = int64_t{1} * blockIdx.x * 4 + WarpId();
  if (row >= int64_t{1} * args.batch * args.seq_len * args.num_heads) return;
  ChunkEntry chunk = {};
  const int head = static_cast<int>(row % args.num_heads);
  chunk.token = row / args.num_heads % args.seq_len;
  chunk.row = static_cast<int>(row / args.num_heads / args.seq_len);
  float sum = 0;
  for (int c = LaneId(); c < args.head_dim_v; c += 32)
    sum = fmaf(Load<T>(grads.dout, chunk, 0, head, c), Load<T>(args.out, chunk, 0, head, c), sum);
  sum = WarpSum(sum);
  if (LaneId() == 0) dnorm[row] = -sum / static_cast<const float*>(args.norm_denom)[row];
}

template <typename T>
void LaunchSimtScan(const SimtScanParams& params, cudaStream_t stream) {
  const DecayAttentionArgs& args = params.args;
  const int64_t blocks =
      int64_t{1} * args.num_sequences * args.num_heads * SimtSlices(args, params.mode);
  Launch({static_cast<unsigned>(blocks), static_cast<unsigned>((args.head_dim_k + 31) / 32 * 32), 0,
          "decay attention token by token"},
         stream, SimtScanKernel<T>, params);
}

template <typename T>
void LaunchSimtReverseScan(const SimtReverseScanParams& params, cudaStream_t stream) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int warps = (args.head_dim_k + 31) / 32;
  const int64_t blocks =
      int64_t{1} * args.num_sequences * args.num_heads * SimtSlices(args, SimtMode::kStates);
  const int smem_floats = kChunk * (2 * kSimtColumns + warps * (kSimtColumns + 2) + 1);
  Launch({static_cast<unsigned>(blocks), static_cast<unsigned>(32 * warps), smem_floats * 4,
          "decay attention token by token in reverse"},
         stream, SimtReverseScanKernel<T>, params);
}

template <typename T>
void LaunchSimtNormGradient(const DecayAttentionGradArgs& grads, float* dnorm,
                            cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  const int64_t rows = int64_t{1} * args.batch * args.seq_len * args.num_heads;
  constexpr const char* kName = "decay attention normaliser's gradient";
  if (rows > 0)
    Launch({GridBlocks((rows + 3) / 4, kName), 128, 0, kName}, stream, SimtNormGradientKernel<T>,
           grads, dnorm);
}

}  // namespace halflife::kernels::decay
