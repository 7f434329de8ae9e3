// The second pass: the states before all chunks, serial over the chunks of a sequence, or over
// those between two checkpoints. A block owns one slice of 32 columns of the state [K, V] of one
// value head, 16 rows per warp in fp32 accumulators. For each chunk:
//
//   store S (checkpoint in fp32; rounded for the output and in shared memory)
//   U = U~ - W S          [64, 32], by up to 8 warps
//   S = Gamma S + (k Q)^T U
//
// W and k Q of the next chunk are loaded during a chunk, if two pairs of them fit.
//
// Shared memory in KiB, bf16, K = 128 (85):
//   | 2 x (W 17 | k Q 17) | S 10 | U 5 |
#pragma once

#include "kernels/delta_rule/cuda/products.cuh"
#include "kernels/delta_rule/cuda/scan_block.cuh"

namespace halflife::kernels::delta {

template <typename T_, int kK_>
struct ScanConfig {
  using T = T_;
  static constexpr int kK = kK_;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  using Rows = Matrix<T, kK>;
  using Slice = Matrix<T, kValueSlice>;
  static constexpr int kStages = Rows::Bytes(kChunk) <= 36 * 1024 ? 2 : 1;
  static constexpr int kSmemBytes =
      2 * kStages * Rows::Bytes(kChunk) + Slice::Bytes(kK) + Slice::Bytes(kChunk);
  static_assert(kSmemBytes <= kMaxSharedBytesPerBlock);
};

template <typename Config>
struct ScanShared {
  using T = typename Config::T;
  using Rows = typename Config::Rows;

  T* stages;  // [kStages]: W, then k Q
  typename Config::Slice state, u;

  HL_DEVICE explicit ScanShared(unsigned char* raw) {
    SmemCarver carver(raw);
    stages = carver.Take<T>(2 * Config::kStages * Rows::Elements(kChunk));
    state.data = carver.Take<T>(Config::Slice::Elements(Config::kK));
    u.data = carver.Take<T>(Config::Slice::Elements(kChunk));
  }
  // Addresses are computed: an array of them, indexed by the stage, would be in local memory.
  HL_DEVICE Rows W(int stage) const { return {stages + 2 * stage * Rows::Elements(kChunk)}; }
  HL_DEVICE Rows KeyExit(int stage) const {
    return {stages + (2 * stage + 1) * Rows::Elements(kChunk)};
  }
};

// A warp's 16 rows of a slice, in accumulators.
using StateRows = float[kValueSlice / 8][4];

// Calls visit(accumulator, address) for the elements of the warp's rows that exist in a contiguous
// [K, values] in fp32.
template <typename Visit>
HL_DEVICE void VisitState(StateRows& state, float* data, const ScanParams& params,
                          const ScanBlock& block, const Visit& visit) {
  const int keys = params.args.head_dim_k, values = params.values;
  ForPairs(state, WarpId() * 16, block.column, [&](int r, int c, float& x, float& y) {
    if (r >= keys) return;
    float* const at = data + int64_t{1} * r * values + c;
    if (c < values) visit(x, at);
    if (c + 1 < values) visit(y, at + 1);
  });
}

HL_DEVICE void LoadFirstState(StateRows& state, const ScanParams& params, const ScanBlock& block) {
  Clear(state);
  const auto load = [](float& x, const float* at) { x = *at; };
  if (params.from_checkpoints) {
    VisitState(state, CheckpointAt(params, block, block.begin), params, block, load);
  } else if (params.from_identity) {
    ForPairs(state, WarpId() * 16, block.column, [&](int r, int c, float& x, float& y) {
      x = r == c ? 1.0f : 0.0f;
      y = r == c + 1 ? 1.0f : 0.0f;
    });
  } else if (params.initial_state != nullptr) {
    VisitState(state, const_cast<float*>(params.initial_state) + StateIndex(params, block), params,
               block, load);
  }
}

// Rounds the state into shared memory, and into the workspace if it is requested there.
template <typename Config>
HL_DEVICE void PublishState(const ScanShared<Config>& smem, StateRows& state,
                            const ScanParams& params, const ScanBlock& block, int64_t index) {
  using T = typename Config::T;
  const int width = PaddedValues(params.values);
  T* const states =
      params.workspace.states == nullptr
          ? nullptr
          : static_cast<T*>(params.workspace.states) + index * Config::kK * width + block.column;
  ForPairs(state, WarpId() * 16, 0, [&](int r, int c, float x, float y) {
    StorePair(&smem.state.At(r, c), x, y);
    if (states != nullptr) StorePair(states + r * width + c, x, y);
  });
}

// U = U~ - W S: each of the first (at most 8) warps has 16 rows and kColumns columns.
template <typename Config>
HL_DEVICE void SubtractRead(const ScanShared<Config>& smem, typename Config::Rows w,
                            const ScanParams& params, const ScanBlock& block, int64_t index) {
  using T = typename Config::T;
  constexpr int kParts = Config::kWarps >= 8 ? 2 : 1, kColumns = kValueSlice / kParts;
  if (WarpId() >= 4 * kParts) return;
  const int row = WarpId() % 4 * 16, column = WarpId() / 4 * kColumns;
  const int width = PaddedValues(params.values);
  T* const u = params.workspace.u == nullptr
                   ? nullptr
                   : static_cast<T*>(params.workspace.u) + index * kChunk * width + block.column;
  float given[kColumns / 8][4], read[kColumns / 8][4];
  Clear(given);
  Clear(read);
  if (u != nullptr)  // before the product, which hides the loads
    ForPairs(given, row, column, [&](int r, int c, float& x, float& y) {
      const float2 pair = LoadPair(u + r * width + c);
      x = pair.x, y = pair.y;
    });
  MultiplyAdd<kColumns / 16>(read, w, row, smem.state, column, 0, Config::kK);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) given[n][i] -= read[n][i];
  }
  ForPairs(given, row, column, [&](int r, int c, float x, float y) {
    StorePair(&smem.u.At(r, c), x, y);
    if (u != nullptr) StorePair(u + r * width + c, x, y);
  });
}

// S = Gamma S + (k Q)^T U
template <typename Config>
HL_DEVICE void AddWritten(const ScanShared<Config>& smem, typename Config::Rows k_exit,
                          const float (&through)[2], StateRows& state) {
#pragma unroll
  for (int n = 0; n < kValueSlice / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state[n][i] *= through[i / 2];
  }
  MultiplyAdd<kValueSlice / 16>(state, Transposed(k_exit), WarpId() * 16, smem.u, 0, 0, kChunk);
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1) ScanKernel(const ScanParams params) {
  using T = typename Config::T;
  constexpr int kK = Config::kK, kStages = Config::kStages;
  HL_DYNAMIC_SMEM(raw);
  const ScanShared<Config> smem(raw);
  const DeltaRuleArgs& args = params.args;
  const ScanBlock block = MakeScanBlock<kValueSlice>(params);
  if (params.from_checkpoints && block.begin >= block.end) return;
  const auto index_of = [&](int n) { return int64_t{1} * n * args.num_value_heads + block.head; };
  const auto load = [&](int n) {
    if (n >= block.end) return;
    const int stage = (n - block.begin) % kStages;
    const int64_t first = index_of(n) * kChunk * kK;
    LoadArray<kChunk, Config::kThreads>(smem.W(stage),
                                        static_cast<const T*>(params.workspace.w) + first, kK);
    LoadArray<kChunk, Config::kThreads>(smem.KeyExit(stage),
                                        static_cast<const T*>(params.workspace.k_exit) + first, kK);
    CpAsyncCommit();
  };
  StateRows state;
  LoadFirstState(state, params, block);
  load(block.begin);
#pragma unroll 1
  for (int n = block.begin; n < block.end; ++n) {
    const int stage = (n - block.begin) % kStages;
    if (args.chunks[n].flags & kChunkResets) Clear(state);
    if (params.checkpoints != nullptr && !params.from_checkpoints &&
        (n - block.first) % kDeltaCheckpointEvery == 0)
      VisitState(state, CheckpointAt(params, block, n), params, block,
                 [](float& x, float* at) { *at = x; });
    const float* const gamma = params.workspace.through + index_of(n) * kK + WarpId() * 16;
    const float through[2] = {gamma[LaneId() / 4], gamma[LaneId() / 4 + 8]};
    PublishState(smem, state, params, block, index_of(n));
    CpAsyncWait<0>();
    __syncthreads();
    if (kStages == 2) load(n + 1);
    SubtractRead(smem, smem.W(stage), params, block, index_of(n));
    __syncthreads();
    AddWritten(smem, smem.KeyExit(stage), through, state);
    if (kStages == 1) {
      __syncthreads();
      load(n + 1);
    }
  }
  if (params.final_state == nullptr) return;
  VisitState(state, params.final_state + StateIndex(params, block), params, block,
             [](float& x, float* at) { *at = x; });
}

}  // namespace halflife::kernels::delta
