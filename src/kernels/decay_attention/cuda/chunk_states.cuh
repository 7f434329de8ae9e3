// The states that gradients of all chunks side by side start from (warpgroup_gradients.cuh): S
// before each chunk, scanned from the checkpoint at a segment's start, and R = dL/d(state) after
// each, scanned from its end. A block has a segment in one direction; it multiplies once a chunk
// and stores what it holds, rounded.
//
//   S' = transition S + (c outgoing k)^T v,    R' = transition R + (incoming q)^T dout
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 2 x (x [C, K] 16 | y [C, V] 16) | 2 x tables 2.3 | place | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/reverse.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_>
struct ChunkStatesConfig {
  static constexpr int kK = kK_, kV = kV_;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = ChunkStatesBlocksPerSm(kK, kV);
  static constexpr int kSmemBytes = StateScanBytes(kK, kV) + kPlaceBytes;
};

// Lanes of four neighbours trade: of word j of lane i, word i of lane j.
HL_DEVICE void TransposeQuad(uint32_t (&words)[4]) {
  const bool odd = LaneId() % 2 != 0, upper = LaneId() % 4 / 2 != 0;
#pragma unroll
  for (int n = 0; n < 4; n += 2) {
    const uint32_t got = __shfl_xor_sync(kFullWarp, odd ? words[n] : words[n + 1], 1);
    words[n] = odd ? got : words[n];
    words[n + 1] = odd ? words[n + 1] : got;
  }
  // Now of even lanes words n, n + 1 are tile n's, their own and the neighbour's; of odd ones tile
  // n + 1's.
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint32_t got = __shfl_xor_sync(kFullWarp, upper ? words[n] : words[n + 2], 2);
    words[n] = upper ? got : words[n];
    words[n + 2] = upper ? words[n + 2] : got;
  }
}
// Row g (half 1: g + 8) of four neighbouring accumulators: in lane t, 8 columns from 8 t on.
HL_DEVICE uint4 RowOfQuad(const float (*d)[4], int half) {
  uint32_t words[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) words[n] = PackBf16(d[n][2 * half], d[n][2 * half + 1]);
  TransposeQuad(words);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// A state's place in ReverseScanParams::states and ::adjoints, [chunks of the turn, H, slices of K
// and V]: 64-bit, as pointers to it are.
HL_DEVICE int64_t StateSlot(const ReverseScanParams& params, const Place& place, int chunk) {
  const SegmentShape& shape = params.shape;
  const DecayAttentionArgs& args = params.grads.forward;
  const int of_turn = chunk - args.sequence_begin[shape.first_sequence];
  return (int64_t{1} * of_turn * args.num_heads + place.head) * shape.num_parts() +
         PartOf(params, place);
}

// A warp's 16 rows of a state [kK, kV], rounded.
template <typename Config>
HL_DEVICE void StoreChunkState(bf16* state, const float (&values)[Config::kV / 8][4]) {
  const int lane = FreshLaneId();
  bf16* const place = state + (WarpId() * 16 + lane / 4) * Config::kV + lane % 4 * 8;
#pragma unroll
  for (int n = 0; n < Config::kV / 8; n += 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint4*>(place + 8 * half * Config::kV + 8 * n) =
          RowOfQuad(values + n, half);
  }
}

template <typename Config>
struct ChunkStatesShared {
  bf16 *x, *y;          // [2][64, kK | kV]
  DecayTables* tables;  // [2]
  Place* place;         // all threads have the same: here it takes no registers, which are scarce
};

// Starts to load what the product of a chunk takes: k and v, or q and dout.
template <typename Config>
HL_DEVICE void LoadStateChunk(const ChunkStatesShared<Config>& smem,
                              const ReverseScanParams& params, const ChunkEntry& chunk, int stage,
                              bool reverse) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  const DecayAttentionArgs& args = params.grads.forward;
  const Place& place = *smem.place;
  const TensorView& x = reverse ? args.q : args.k;
  const TensorView& y = reverse ? params.grads.dout : args.v;
  const int x_heads = reverse ? args.num_q_heads : args.num_k_heads;
  const int y_heads = reverse ? args.num_heads : args.num_v_heads;
  LoadTile<kK, kThreads>(smem.x + stage * kChunk * kK,
                         RowsOf(x, chunk, SharedHead(place.head, x_heads, args.num_heads),
                                place.key_slice * kK, args.head_dim_k),
                         chunk.length);
  LoadTile<kV, kThreads>(smem.y + stage * kChunk * kV,
                         RowsOf(y, chunk, SharedHead(place.head, y_heads, args.num_heads),
                                place.slice * kV, args.head_dim_v),
                         chunk.length);
  CpAsyncCommit();
  if (FreshWarpId() == 0)
    FillDecayTables(smem.tables[stage], args, chunk, place.head, params.row_scales);
}

// What a segment starts from.
template <typename Config>
HL_DEVICE void LoadFirstState(float (&state)[Config::kV / 8][4], const ReverseScanParams& params,
                              const Place& place, bool reverse, const StateRows& rows) {
  const DecayAttentionArgs& args = params.grads.forward;
  const int64_t elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  Clear(state);
  if (!reverse) {
    if (place.begin < place.end) LoadCheckpoint<Config>(state, params, place, place.begin, rows);
  } else if (params.segment_states != nullptr) {
    LoadState<false>(state, params.segment_states + place.piece * elements, rows);
  } else if (params.grads.dfinal_state != nullptr) {
    LoadState<false>(
        state, static_cast<const float*>(params.grads.dfinal_state) + place.state * elements, rows);
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChunkStatesKernel(const ReverseScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  ChunkStatesShared<Config> smem;
  smem.x = carver.Take<bf16>(2 * kChunk * kK);
  smem.y = carver.Take<bf16>(2 * kChunk * kV);
  smem.tables = carver.Take<DecayTables>(2);
  smem.place = carver.Take<Place>(1);

  const DecayAttentionArgs& args = params.grads.forward;
  const unsigned one_way = gridDim.x / 2;
  const bool reverse = blockIdx.x >= one_way;
  if (threadIdx.x == 0)
    *smem.place = PlaceOf(args, params.shape, params.checkpoint_every,
                          reverse ? blockIdx.x - one_way : blockIdx.x);
  __syncthreads();
  const Place& place = *smem.place;
  const int num_chunks = place.end - place.begin;
  // Nobody asks what the last forward chunk makes of the state.
  const int num_products = reverse ? num_chunks : num_chunks - 1;
  const auto index_of = [&](int i) { return reverse ? place.end - 1 - i : place.begin + i; };
  const auto load = [&](int i) {
    if (i < num_products) LoadStateChunk(smem, params, args.chunks[index_of(i)], i % 2, reverse);
  };
  const auto rows = [&] {
    return StateRows{args.head_dim_k, args.head_dim_v, place.key_slice * kK + FreshWarpId() * 16,
                     place.slice * kV};
  };
  float state[kV / 8][4];
  LoadFirstState<Config>(state, params, place, reverse, rows());
  load(0);
#pragma unroll 1
  for (int i = 0; i < num_chunks; ++i) {
    const int index = index_of(i);
    const bool resets = (args.chunks[index].flags & kChunkResets) != 0;
    if (!reverse && resets) Clear(state);
    StoreChunkState<Config>(static_cast<bf16*>(reverse ? params.adjoints : params.states) +
                                StateSlot(params, place, index) * (kK * kV),
                            state);
    if (i >= num_products) break;
    CpAsyncWait<0>();
    __syncthreads();
    load(i + 1);
    const DecayTables& table = smem.tables[i % 2];
    Scale(state, table.transition);
    AccumulateOuter<kK, kV>(state, smem.x + i % 2 * kChunk * kK, smem.y + i % 2 * kChunk * kV,
                            reverse ? table.incoming : table.outgoing_scaled);
    if (reverse && resets) Clear(state);
  }
  if (reverse && params.grads.dinitial_state != nullptr && place.starts)
    StoreState<false>(state,
                      static_cast<float*>(params.grads.dinitial_state) +
                          place.state * (int64_t{1} * args.head_dim_k * args.head_dim_v),
                      rows());
}

template <int kK, int kV>
void LaunchChunkStates(const ReverseScanParams& params, cudaStream_t stream) {
  using Config = ChunkStatesConfig<kK, kV>;
  Launch({2 * NumBlocks(params.grads.forward, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention states of chunks"},
         stream, ChunkStatesKernel<Config>, params);
}

}  // namespace halflife::kernels::decay
