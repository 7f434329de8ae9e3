// Decay attention by a recurrent (per-token) kernel in fp32: every kind of decay, with or without
// the normaliser, fp32 and bf16 operands, K up to 256 and V up to 512. It is slower than the
// tensor-core scans and runs the problems that those do not support (route.h).
//
// A thread owns one key channel and kSimtColumns columns of its row of the state, in registers. A
// sum over V (dq, dk, the decay's gradient) is then local to the thread. A sum over K (out, dv)
// uses a shuffle tree and shared memory. The normaliser adds one column of v that is all ones.
//
// Decays near 1 are applied as S += expm1(log_decay) S. Rounding 1 - 1e-6 to fp32 would cause an
// error of 3e-8 per token, always with the same sign.
#pragma once

#include "kernels/common/cuda/chunk_rows.cuh"
#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

struct SimtBlockIndex {
  int sequence, head, slice, begin, end;
  // the thread's channel; number of existing columns of V in the slice's range
  int channel, columns;
  int64_t state;
};

// S exp(log_decay) is computed as keep S + change S. For decays near 1, change = expm1(log_decay)
// keeps all bits; for decays near 0, that would cancel.
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

HL_DEVICE SimtBlockIndex MakeSimtBlockIndex(const DecayAttentionArgs& args, int first_sequence,
                                            int num_slices) {
  SimtBlockIndex block_index;
  int64_t index = blockIdx.x;
  block_index.slice = static_cast<int>(index % num_slices);
  index /= num_slices;
  block_index.head = static_cast<int>(index % args.num_heads);
  block_index.sequence = first_sequence + static_cast<int>(index / args.num_heads);
  block_index.begin = args.sequence_begin[block_index.sequence];
  block_index.end = args.sequence_begin[block_index.sequence + 1];
  block_index.channel = static_cast<int>(threadIdx.x);
  block_index.columns = 0;
  block_index.state = int64_t{1} * block_index.sequence * args.num_heads + block_index.head;
  return block_index;
}

// The columns of a slice: columns of V, the normaliser's column of ones, or padding.
struct SimtColumns {
  int first, count;  // columns [first, first + count) of V
  int ones;          // index of the column of ones within the slice, or -1
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

// Loads (below: stores) the thread's row of a state [K, V] and of its norm [K]; both may be null.
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

// The operand heads that output head `head` reads.
struct SimtHeads {
  int q, k, v, decay;
};
HL_DEVICE SimtHeads HeadsOf(const DecayAttentionArgs& args, int head) {
  SimtHeads heads;
  heads.q = SharedHead(head, args.num_q_heads, args.num_heads);
  heads.k = SharedHead(head, args.num_k_heads, args.num_heads);
  heads.v = SharedHead(head, args.num_v_heads, args.num_heads);
  heads.decay = SharedHead(head, args.num_decay_heads, args.num_heads);
  return heads;
}

// A thread's part of the problem.
struct SimtThread {
  SimtBlockIndex block_index;
  SimtColumns columns;
  SimtHeads heads;
  int num_slices, num_warps;
  bool live;  // its channel exists
  bool normalised, per_channel;

  HL_DEVICE int decay_channel() const { return per_channel ? block_index.channel : 0; }
};
HL_DEVICE SimtThread SimtThreadOf(const DecayAttentionArgs& args, int first_sequence,
                                  bool ones_in_each) {
  SimtThread at;
  at.normalised = args.norm_kind == NormKind::kSumOfKeys;
  at.per_channel = IsPerChannel(args.decay_kind);
  const int width = at.normalised && ones_in_each ? kSimtColumns - 1 : kSimtColumns;
  const int columns = args.head_dim_v + (at.normalised && !ones_in_each ? 1 : 0);
  at.num_slices = (columns + width - 1) / width;
  at.num_warps = SimtThreads(args.head_dim_k) / 32;
  at.block_index = MakeSimtBlockIndex(args, first_sequence, at.num_slices);
  at.columns = ColumnsOf(args, at.block_index.slice, ones_in_each);
  at.heads = HeadsOf(args, at.block_index.head);
  at.live = at.block_index.channel < args.head_dim_k;
  return at;
}
// Returns the offset of the thread's row of the state before a chunk, in [num_chunks, H, K, V (+
// 1)].
HL_DEVICE int64_t ChunkStateRow(const DecayAttentionArgs& args, const SimtThread& at, int chunk) {
  const int stride = args.head_dim_v + (at.normalised ? 1 : 0);
  return ((int64_t{1} * chunk * args.num_heads + at.block_index.head) * args.head_dim_k +
          at.block_index.channel) *
             stride +
         at.columns.first;
}

// ---- steps of the forward scan ----

// Double buffers: v of token t and the sums of token t - 1 are in buffers that token t + 1 does not
// use.
struct SimtShared {
  float (*values)[kSimtColumns];                   // [2]
  float (*sums)[kMaxHeadDimK / 32][kSimtColumns];  // [2]: q S of a token, per warp
};
// A token of one chunk, and the buffer that it uses.
struct SimtToken {
  ChunkEntry chunk;
  int token, buffer;
};

// Loads the token's v and the normaliser's 1, by the first warp.
template <typename T>
HL_DEVICE void LoadValues(const SimtShared& smem, const DecayAttentionArgs& args,
                          const SimtThread& at, const SimtToken& now) {
  if (WarpId() != 0) return;
  const int lane = LaneId();
  float v = 0;
  if (lane < at.columns.count)
    v = Load<T>(args.v, now.chunk, now.token, at.heads.v, at.columns.first + lane);
  if (lane == at.columns.ones) v = 1;
  smem.values[now.buffer][lane] = v;
}

// The thread's channel of a token; zeros if the channel does not exist.
struct SimtInputs {
  float q, k, log_decay;  // q times scale, k times key_scale
};
template <typename T>
HL_DEVICE SimtInputs LoadInputs(const DecayAttentionArgs& args, const SimtThread& at,
                                const SimtToken& now, bool output) {
  const int channel = at.block_index.channel;
  SimtInputs x = {0, 0, 0};
  if (!at.live) return x;
  if (output)
    x.q =
        static_cast<float>(args.scale) * Load<T>(args.q, now.chunk, now.token, at.heads.q, channel);
  x.k = Load<T>(args.k, now.chunk, now.token, at.heads.k, channel) *
        KeyScaleAt(args, now.chunk, now.token, at.block_index.head);
  x.log_decay = LogDecayAt(args, now.chunk, now.token, at.heads.decay, at.decay_channel());
  return x;
}

// Computes S = decay S + k^T v and products = q S.
HL_DEVICE void UpdateState(float (&state)[kSimtColumns], float (&products)[kSimtColumns],
                           const SimtInputs& x, const float* values) {
  const DecayStep step = DecayStepOf(x.log_decay);
#pragma unroll
  for (int c = 0; c < kSimtColumns; ++c) {
    state[c] = Decayed(step, state[c]);
    state[c] = fmaf(x.k, values[c], state[c]);
    products[c] = x.q * state[c];
  }
}

// Sums over the warps, divides by the denominator, and stores, by the first warp.
template <typename T>
HL_DEVICE void StoreOutput(const SimtShared& smem, const DecayAttentionArgs& args,
                           const SimtThread& at, const SimtToken& done) {
  if (WarpId() != 0) return;
  const int lane = LaneId();
  float y = 0;
  for (int w = 0; w < at.num_warps; ++w) y += smem.sums[done.buffer][w][lane];
  if (at.normalised) {
    const float denom =
        __shfl_sync(kFullWarp, y, kSimtColumns - 1) + static_cast<float>(args.norm_eps);
    y /= denom;
    if (lane == 0 && at.block_index.slice == 0 && args.norm_denom != nullptr)
      static_cast<float*>(
          args.norm_denom)[FlatRow(args, done.chunk, done.token, at.block_index.head)] = denom;
  }
  if (lane < at.columns.count)
    Store<T>(args.out, done.chunk, done.token, at.block_index.head, at.columns.first + lane, y);
}

HL_DEVICE void SaveChunkState(const float (&state)[kSimtColumns], const SimtScanParams& params,
                              const SimtThread& at, int chunk) {
  if (!at.live) return;
  float* const target = params.states + ChunkStateRow(params.args, at, chunk);
#pragma unroll
  for (int c = 0; c < kSimtColumns; ++c)
    if (c < at.columns.count || c == at.columns.ones) target[c] = state[c];
}

HL_DEVICE void StoreTransition(float log_transition, const SimtScanParams& params,
                               const SimtThread& at) {
  if (params.log_transition == nullptr || at.block_index.slice != 0) return;
  const int channel = at.block_index.channel;
  if (at.per_channel) {
    if (at.live)
      params.log_transition[at.block_index.state * params.args.head_dim_k + channel] =
          log_transition;
  } else if (channel == 0) {
    params.log_transition[at.block_index.state] = log_transition;
  }
}

// One barrier per token.
template <typename T>
__global__ void __launch_bounds__(kMaxHeadDimK, 1) SimtScanKernel(const SimtScanParams params) {
  const DecayAttentionArgs& args = params.args;
  HL_SHARED(values, float[2][kSimtColumns]);
  HL_SHARED(sums, float[2][kMaxHeadDimK / 32][kSimtColumns]);
  const SimtShared smem = {values, sums};
  const bool output = params.mode == SimtMode::kOutput;
  const SimtThread at = SimtThreadOf(args, /*first_sequence=*/0, output);
  const int channel = at.block_index.channel;

  float state[kSimtColumns];
  const bool carries = params.mode != SimtMode::kSummary;
  LoadStateRow(state, carries ? args.initial_state : nullptr, carries ? args.initial_norm : nullptr,
               at.block_index.state, args, at.columns, channel);
  float log_transition = 0;
  SimtToken now = {}, before = {};
  before.token = -1;
#pragma unroll 1
  for (int index = at.block_index.begin; index < at.block_index.end; ++index) {
    now.chunk = args.chunks[index];
    if ((now.chunk.flags & kChunkResets) != 0) {
#pragma unroll
      for (int c = 0; c < kSimtColumns; ++c) state[c] = 0;
      log_transition = __uint_as_float(0xff800000u);
    }
    if (params.mode == SimtMode::kStates) SaveChunkState(state, params, at, index);
#pragma unroll 1
    for (now.token = 0; now.token < now.chunk.length; ++now.token) {
      LoadValues<T>(smem, args, at, now);
      const SimtInputs x = LoadInputs<T>(args, at, now, output);
      log_transition += x.log_decay;
      __syncthreads();
      if (output && before.token >= 0) StoreOutput<T>(smem, args, at, before);
      float products[kSimtColumns];
      UpdateState(state, products, x, values[now.buffer]);
      if (output) sums[now.buffer][WarpId()][LaneId()] = SumOverLanes(products);
      before = now;
      now.buffer = 1 - now.buffer;
    }
  }
  if (output) {
    __syncthreads();
    if (before.token >= 0) StoreOutput<T>(smem, args, at, before);
  }
  // With a column of ones in each slice, only the first slice stores the norm.
  const bool stores_norm = !output || at.block_index.slice == 0;
  if (params.mode != SimtMode::kStates)
    StoreStateRow(state, args.final_state, stores_norm ? args.final_norm : nullptr,
                  at.block_index.state, args, at.columns, channel);
  StoreTransition(log_transition, params, at);
}

// ---- steps of the reverse scan ----

// D_t = dL/d(log_decay_t) = sum_v decay_t S_{t-1} R_t, with R_t after q_t was added, is computed
// backwards:
//   D_t = D_{t+1} + q_t (scale decay_t S_{t-1} dout_t) - k_t (decay_{t+1} R_{t+1} v_t)
// It restarts in each chunk, so that differences do not accumulate over several chunks. A token's
// product with itself (k_t v_t dout_t q_t) is in neither term: with strong decays, it is far larger
// than D. For the same reason, the chunk's last D is summed directly, without the last key.
struct SimtReverseShared {
  float *values, *douts;           // [C, kSimtColumns]
  float* dv_sums;                  // [C, warps, kSimtColumns]
  float *scale_sums, *decay_sums;  // [C, warps]
  float* own;                      // [C]: v_t dout_t

  HL_DEVICE SimtReverseShared(SmemCarver& carver, int num_warps)
      : values(carver.Take<float>(kChunk * kSimtColumns)),
        douts(carver.Take<float>(kChunk * kSimtColumns)),
        dv_sums(carver.Take<float>(kChunk * num_warps * kSimtColumns)),
        scale_sums(carver.Take<float>(kChunk * num_warps)),
        decay_sums(carver.Take<float>(kChunk * num_warps)),
        own(carver.Take<float>(kChunk)) {}
};

// Returns the index of a token's row in the slice's partial sums.
HL_DEVICE int64_t SliceRow(const DecayAttentionArgs& args, const SimtThread& at,
                           const ChunkEntry& chunk, int token) {
  return int64_t{1} * args.batch * args.seq_len * args.num_heads * at.block_index.slice +
         FlatRow(args, chunk, token, at.block_index.head);
}

// Loads v and dout of a chunk. With the normaliser, the additional column has 1 and the gradient of
// the denominator.
template <typename T>
HL_DEVICE void LoadReverseChunk(const SimtReverseShared& smem, const SimtReverseScanParams& params,
                                const SimtThread& at, const ChunkEntry& chunk) {
  const DecayAttentionGradArgs& grads = params.grads;
  const DecayAttentionArgs& args = grads.forward;
  const int head = at.block_index.head, first = at.columns.first;
#pragma unroll 1
  for (int i = at.block_index.channel; i < chunk.length * kSimtColumns; i += 32 * at.num_warps) {
    const int token = i / kSimtColumns, c = i % kSimtColumns;
    float v = 0, dout = 0;
    if (c < at.columns.count) {
      v = Load<T>(args.v, chunk, token, at.heads.v, first + c);
      dout = Load<T>(grads.dout, chunk, token, head, first + c);
      if (at.normalised)
        dout /= static_cast<const float*>(args.norm_denom)[FlatRow(args, chunk, token, head)];
    } else if (c == at.columns.ones) {
      v = 1;
      dout = params.dnorm[FlatRow(args, chunk, token, head)];
    }
    smem.values[i] = v;
    smem.douts[i] = dout;
  }
}

HL_DEVICE void OwnProducts(const SimtReverseShared& smem, const SimtThread& at,
                           const ChunkEntry& chunk) {
#pragma unroll 1
  for (int token = at.block_index.channel; token < chunk.length; token += 32 * at.num_warps) {
    float sum = 0;
#pragma unroll 1
    for (int c = 0; c < kSimtColumns; ++c) {
      // rotated, so that lanes use different banks
      const int i = token * kSimtColumns + (c + token) % kSimtColumns;
      sum = fmaf(smem.values[i], smem.douts[i], sum);
    }
    smem.own[token] = sum;
  }
}

// Scans a chunk forward from its saved state. Stores decay_t S_{t-1} dout_t in dq, still without
// the token's own key. Returns S R at the chunk's end, without the last key.
template <typename T>
HL_DEVICE float RecomputeStates(const SimtReverseShared& smem, const SimtReverseScanParams& params,
                                const SimtThread& at, const ChunkEntry& chunk, int index,
                                const float (&adjoint)[kSimtColumns]) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int channel = at.block_index.channel;
  float state[kSimtColumns];
  const float* const source = params.states + ChunkStateRow(args, at, index);
#pragma unroll
  for (int c = 0; c < kSimtColumns; ++c)
    state[c] = at.live && (c < at.columns.count || c == at.columns.ones) ? source[c] : 0.0f;
  float key = 0;  // of the previous token, which is added only now
#pragma unroll 1
  for (int token = 0; at.live && token < chunk.length; ++token) {
    const DecayStep step =
        DecayStepOf(LogDecayAt(args, chunk, token, at.heads.decay, at.decay_channel()));
    float dq = 0;
#pragma unroll
    for (int c = 0; c < kSimtColumns; ++c) {
      state[c] = fmaf(key, smem.values[max(token - 1, 0) * kSimtColumns + c], state[c]);
      state[c] = Decayed(step, state[c]);
      dq = fmaf(state[c], smem.douts[token * kSimtColumns + c], dq);
    }
    params.dq[SliceRow(args, at, chunk, token) * args.head_dim_k + channel] = dq;
    key = Load<T>(args.k, chunk, token, at.heads.k, channel) *
          KeyScaleAt(args, chunk, token, at.block_index.head);
  }
  float through = 0;
#pragma unroll
  for (int c = 0; c < kSimtColumns; ++c) through = fmaf(state[c], adjoint[c], through);
  return through;
}

// The thread's channel of a token, in reverse; zeros if the channel does not exist.
struct SimtReverseInputs {
  float q, k, log_decay, key_scale, query;  // query is q times scale
};
template <typename T>
HL_DEVICE SimtReverseInputs LoadReverseInputs(const DecayAttentionArgs& args, const SimtThread& at,
                                              const ChunkEntry& chunk, int token) {
  const int channel = at.block_index.channel;
  SimtReverseInputs x = {0, 0, 0, 0, 0};
  if (at.live) {
    x.q = Load<T>(args.q, chunk, token, at.heads.q, channel);
    x.k = Load<T>(args.k, chunk, token, at.heads.k, channel);
    x.log_decay = LogDecayAt(args, chunk, token, at.heads.decay, at.decay_channel());
  }
  x.key_scale = KeyScaleAt(args, chunk, token, at.block_index.head);
  x.query = static_cast<float>(args.scale) * x.q;
  return x;
}

// Adds q_t dout_t to R, and sets products = k_t R, whose sum is dv. Returns R v_t with the R before
// that.
HL_DEVICE float UpdateAdjoint(float (&adjoint)[kSimtColumns], float (&products)[kSimtColumns],
                              const SimtReverseShared& smem, const SimtReverseInputs& x,
                              int token) {
  float dk = 0;
#pragma unroll
  for (int c = 0; c < kSimtColumns; ++c) {
    dk = fmaf(adjoint[c], smem.values[token * kSimtColumns + c], dk);
    adjoint[c] = fmaf(x.query, smem.douts[token * kSimtColumns + c], adjoint[c]);
    products[c] = adjoint[c] * (x.k * x.key_scale);
  }
  return dk;
}

// Stores dq and dk, and the thread's or warp's part of the gradients of the decay and of the key's
// scale. `through` changes from D_{t+1} to D_t.
HL_DEVICE void StoreTokenGradients(const SimtReverseShared& smem,
                                   const SimtReverseScanParams& params, const SimtThread& at,
                                   const SimtReverseInputs& x, const ChunkEntry& chunk, int token,
                                   float dk, float& through) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int lane = LaneId(), warp = WarpId();
  const int64_t element =
      SliceRow(args, at, chunk, token) * args.head_dim_k + at.block_index.channel;
  if (at.live) {
    const float dq = params.dq[element];
    if (token + 1 < chunk.length) through -= x.k * x.key_scale * dk;
    through += x.query * dq;
    dk = fmaf(x.query, smem.own[token], dk);
    params.dq[element] =
        static_cast<float>(args.scale) * fmaf(x.k * x.key_scale, smem.own[token], dq);
    params.dk[element] = x.key_scale * dk;
  }
  const bool cut = ((chunk.flags & kChunkResets) != 0 && token == 0) ||
                   __float_as_uint(x.log_decay) == 0xff800000u;  // -inf
  if (cut) through = 0;
  if (params.dlog_decay != nullptr && at.per_channel && at.live)
    params.dlog_decay[element] = through;
  if (params.dlog_decay != nullptr && !at.per_channel) {
    const float sum = WarpSum(through);
    if (lane == 0) smem.decay_sums[token * at.num_warps + warp] = sum;
  }
  if (params.dkey_scale != nullptr) {
    const float sum = WarpSum(x.k * dk);
    if (lane == 0) smem.scale_sums[token * at.num_warps + warp] = sum;
  }
}

// Computes R of the previous token; zero if a document starts here.
HL_DEVICE void DecayAdjoint(float (&adjoint)[kSimtColumns], float log_decay, bool starts) {
  const DecayStep step = DecayStepOf(log_decay);
#pragma unroll
  for (int c = 0; c < kSimtColumns; ++c) adjoint[c] = starts ? 0.0f : Decayed(step, adjoint[c]);
}

// Computes the sums over a chunk's warps: dv, and the gradients of scalar decays and of key scales.
HL_DEVICE void SumOverWarps(const SimtReverseShared& smem, const SimtReverseScanParams& params,
                            const SimtThread& at, const ChunkEntry& chunk) {
  const DecayAttentionArgs& args = params.grads.forward;
#pragma unroll 1
  for (int i = at.block_index.channel; i < chunk.length * kSimtColumns; i += 32 * at.num_warps) {
    const int token = i / kSimtColumns, c = i % kSimtColumns;
    if (c >= at.columns.count) continue;
    float sum = 0;
    for (int w = 0; w < at.num_warps; ++w)
      sum += smem.dv_sums[(token * at.num_warps + w) * kSimtColumns + c];
    params.dv[FlatRow(args, chunk, token, at.block_index.head) * args.head_dim_v +
              at.columns.first + c] = sum;
  }
  const bool scalar_decay = params.dlog_decay != nullptr && !at.per_channel;
#pragma unroll 1
  for (int token = at.block_index.channel; token < chunk.length; token += 32 * at.num_warps) {
    const int64_t row = SliceRow(args, at, chunk, token);
    float decay = 0, scale = 0;
    for (int w = 0; w < at.num_warps; ++w) {
      if (scalar_decay) decay += smem.decay_sums[token * at.num_warps + w];
      if (params.dkey_scale != nullptr) scale += smem.scale_sums[token * at.num_warps + w];
    }
    if (scalar_decay) params.dlog_decay[row] = decay;
    if (params.dkey_scale != nullptr) params.dkey_scale[row] = scale;
  }
}

// Stores the gradient of a constant decay for all of the block's chunks.
HL_DEVICE void StoreConstantDecay(const SimtReverseShared& smem,
                                  const SimtReverseScanParams& params, const SimtThread& at,
                                  float dlambda) {
  if (params.dlambda == nullptr) return;
  const int channel = at.block_index.channel;
  const int64_t piece = at.block_index.state * at.num_slices + at.block_index.slice;
  if (at.per_channel) {
    if (at.live) params.dlambda[piece * params.grads.forward.head_dim_k + channel] = dlambda;
    return;
  }
  __syncthreads();
  const float sum = WarpSum(dlambda);
  if (LaneId() == 0) smem.decay_sums[WarpId()] = sum;
  __syncthreads();
  if (channel != 0) return;
  float total = 0;
  for (int w = 0; w < at.num_warps; ++w) total += smem.decay_sums[w];
  params.dlambda[piece] = total;
}

template <typename T>
__global__ void __launch_bounds__(kMaxHeadDimK, 1)
    SimtReverseScanKernel(const SimtReverseScanParams params) {
  const DecayAttentionGradArgs& grads = params.grads;
  const DecayAttentionArgs& args = grads.forward;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  const SimtThread at = SimtThreadOf(args, params.batch_tile.first_sequence, false);
  const SimtReverseShared smem(carver, at.num_warps);
  const bool gradients = !params.summary;

  float adjoint[kSimtColumns];
  LoadStateRow(adjoint, gradients ? grads.dfinal_state : nullptr,
               gradients ? grads.dfinal_norm : nullptr, at.block_index.state, args, at.columns,
               at.block_index.channel);
  float dlambda = 0;
#pragma unroll 1
  for (int index = at.block_index.end - 1; index >= at.block_index.begin; --index) {
    const ChunkEntry chunk = args.chunks[index];
    __syncthreads();  // the previous chunk's sums have been read
    LoadReverseChunk<T>(smem, params, at, chunk);
    __syncthreads();
    float through = 0;
    if (gradients) {
      OwnProducts(smem, at, chunk);
      __syncthreads();
      through = RecomputeStates<T>(smem, params, at, chunk, index, adjoint);
    }
#pragma unroll 1
    for (int token = chunk.length - 1; token >= 0; --token) {
      const SimtReverseInputs x = LoadReverseInputs<T>(args, at, chunk, token);
      float products[kSimtColumns];
      const float dk = UpdateAdjoint(adjoint, products, smem, x, token);
      if (gradients) {
        smem.dv_sums[(token * at.num_warps + WarpId()) * kSimtColumns + LaneId()] =
            SumOverLanes(products);
        StoreTokenGradients(smem, params, at, x, chunk, token, dk, through);
        dlambda += through;
      }
      DecayAdjoint(adjoint, x.log_decay, (chunk.flags & kChunkResets) != 0 && token == 0);
    }
    if (!gradients) continue;
    __syncthreads();
    SumOverWarps(smem, params, at, chunk);
  }
  StoreStateRow(adjoint, grads.dinitial_state, grads.dinitial_norm, at.block_index.state, args,
                at.columns, at.block_index.channel);
  StoreConstantDecay(smem, params, at, dlambda);
}

// One warp per row.
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
  const int64_t blocks = int64_t{1} * params.batch_tile.num_sequences * args.num_heads *
                         SimtSlices(args, SimtMode::kStates);
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
