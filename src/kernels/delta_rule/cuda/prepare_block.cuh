// A block of the first pass (prepare.cuh): its configuration, its shared memory, and what it
// treats.
//
// Shared memory in KiB, bf16, K = 128 (per token 86, per channel 107; for token_scan.cuh 67):
//   | k 17 | q, then v 17 | L 17 | X 17, T 9 | tables 6 |
//   | k 17 | q, then v 17 | L 17 | X, T; before: decayed operands 27 | log decays 33 |
//   | k, q; then X 34     | L, then T 17 | A 9 | tables 6 |
#pragma once

#include "kernels/delta_rule/cuda/decays.cuh"
#include "kernels/delta_rule/cuda/passes.h"

namespace halflife::kernels::delta {

template <typename T_, int kK_, bool kPerChannel_>
struct PrepareConfig {
  using T = T_;
  static constexpr int kK = kK_;
  static constexpr bool kPerChannel = kPerChannel_, kForTokenScan = false;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kValues = 64;           // columns of v at once, which fit q's place
  static constexpr int kScoresPitch = kChunk;  // of A's rows, in the workspace

  using Rows = Matrix<T, kK>;
  using Square = Matrix<float, kChunk>;
  using Operand = Matrix<T, kChunk>;  // T = X diag(beta), rounded
  // Keys before a row tile, and the tile's queries and keys.
  static constexpr int kDecayedRows = kChunk - kTile + 2 * kTile;
  static constexpr int kInverseBytes = Square::Bytes(kChunk) + Operand::Bytes(kChunk);
  static constexpr int kDecayedBytes = kPerChannel ? Rows::Bytes(kDecayedRows) : 0;
  static constexpr int kSharedBlock = kInverseBytes > kDecayedBytes ? kInverseBytes : kDecayedBytes;
  static constexpr int kDecayBytes =
      kPerChannel ? Matrix<float, kK>::Bytes(kChunk) : static_cast<int>(sizeof(DecayTables));
  static constexpr int kSmemBytes = 2 * Rows::Bytes(kChunk) + Square::Bytes(kChunk) + kSharedBlock +
                                    kDecayBytes + kChunk * static_cast<int>(sizeof(float));
  static_assert(kSmemBytes <= kMaxSharedBytesPerBlock);
  // As many as fit sm_90's shared memory, up to 2: at most 128 registers.
  static constexpr int kMinBlocksPerSm = 2 * kSmemBytes <= kMaxSharedBytesPerBlock ? 2 : 1;
};

// Prepares the operands of token_scan.cuh. There are no products of X with k and v, so X can take
// their place.
template <int kK_>
struct PrepareTokensConfig {
  using T = bf16;
  static constexpr int kK = kK_;
  static constexpr bool kPerChannel = false, kForTokenScan = true;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kValues = 64;
  using Rows = Matrix<T, kK>;
  using Square = Matrix<float, kChunk>;
  using Operand = Matrix<T, kChunk>;
  static constexpr int kScoresPitch = Operand::kPitch;
  static constexpr int kDecayBytes = static_cast<int>(sizeof(DecayTables));
  static constexpr int kSmemBytes = 2 * Rows::Bytes(kChunk) + Square::Bytes(kChunk) +
                                    Operand::Bytes(kChunk) + kDecayBytes +
                                    kChunk * static_cast<int>(sizeof(float));
  static_assert(Square::Bytes(kChunk) <= 2 * Rows::Bytes(kChunk));
  static constexpr int kMinBlocksPerSm = kK <= 128 ? 3 : 2;
  static_assert(kMinBlocksPerSm * (kSmemBytes + 1024) <= 228 * 1024);
};

template <typename Config>
struct PrepareShared {
  using T = typename Config::T;

  typename Config::Rows k, q;
  Matrix<T, Config::kValues> v;          // in q's place
  typename Config::Square lower;         // L
  typename Config::Square inverse;       // X; kForTokenScan: in the place of k and q
  typename Config::Operand operand;      // T; kForTokenScan: in the place of L
  typename Config::Operand scores;       // kForTokenScan: A
  typename Config::Rows decayed;         // in the place of X and T: keys, queries, readers' keys
  DecayTables* tables;                   // per token
  Matrix<float, Config::kK> log2_decay;  // per channel
  float* beta;

  HL_DEVICE explicit PrepareShared(unsigned char* raw) {
    SmemCarver carver(raw);
    k.data = carver.Take<T>(2 * Config::Rows::Elements(kChunk));
    q.data = k.data + Config::Rows::Elements(kChunk);
    v.data = q.data;
    lower.data = carver.Take<float>(Config::Square::Elements(kChunk));
    if constexpr (Config::kForTokenScan) {
      inverse.data = reinterpret_cast<float*>(k.data);
      operand.data = reinterpret_cast<T*>(lower.data);
      scores.data = carver.Take<T>(Config::Operand::Elements(kChunk));
    } else {
      unsigned char* const block = carver.Take<unsigned char>(Config::kSharedBlock);
      inverse.data = reinterpret_cast<float*>(block);
      operand.data = reinterpret_cast<T*>(block + Config::Square::Bytes(kChunk));
      decayed.data = reinterpret_cast<T*>(block);
    }
    unsigned char* const decays = carver.Take<unsigned char>(Config::kDecayBytes);
    tables = reinterpret_cast<DecayTables*>(decays);
    log2_decay.data = reinterpret_cast<float*>(decays);
    beta = carver.Take<float>(kChunk);
  }
};

// The chunk and value head of a block, and the places of its results.
template <typename T>
struct ChunkPlace {
  ChunkEntry chunk;
  int head;       // value head
  int64_t index;  // of the arrays: n HV + head
  T* scores;      // A, with rows of kScoresPitch; null: neither A nor q_entry is requested
  float scale;
};

}  // namespace halflife::kernels::delta
