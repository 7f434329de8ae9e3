// Inner header of the family: chunked layouts, the recurrence over chunk states, and the interface behind which scalar
// decay (one per head and token) and channel decay (one per key channel too) differ.
//
// Arithmetic is in `compute`: fp32, or fp64 for fp64 inputs. Where the tokens do not fill the last chunk, the rest is
// padded with zero q, k, v and decay 1 (log 0), which changes no output and no state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kernels/decay_attention/decay_attention.h"

namespace halflife::kernels::internal {

struct ChunkShape {
  int64_t batch, seq_len, num_heads, head_dim_k, head_dim_v;
  int64_t chunk;       // C
  int64_t num_chunks;  // N
  at::ScalarType compute;
};

// Channel decay works in tiles of this many rows, and its chunk is a multiple of it.
constexpr int64_t kTile = 16;

bool IsConstantDecay(const DecayAttentionInputs& inputs);  // [H]
bool IsChannelDecay(const DecayAttentionInputs& inputs);   // [B, T, H, K]

// Checks the inputs' shapes too.
ChunkShape MakeChunkShape(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config);

// [B, T, H, D] -> [B, H, N, C, D], and back.
at::Tensor Pack(const at::Tensor& x, const ChunkShape& shape);
at::Tensor Unpack(const at::Tensor& x, const ChunkShape& shape, at::ScalarType dtype);

// log_decay with -inf at document starts, in chunks: [Bg, H, Ng, C] or [B, H, N, C, K]. A constant decay has Bg = 1, and
// Ng = 1 where all chunks are full.
at::Tensor PackLogDecay(const DecayAttentionInputs& inputs, const ChunkShape& shape);

// In place over `terms` [B, H, N, K, V], walking the chunks forward or in reverse: slot n takes the state before its own
// term enters, then state = transition_n * state + term_n. Returns the last state [B, H, K, V].
// transition [Bg, H, Ng, K or 1]; first_state may be undefined: zero.
at::Tensor ScanStates(at::Tensor& terms, const at::Tensor& transition,
                      const at::Tensor& first_state, bool reverse);

// d(log_decay) of each token in sum form, in which nothing is a difference of long sums: dg_t = sum_{r >= t} after_r +
// sum_{s < t} before_s + all. after, before [.., C(, K)], all [..(, K)]; token_dim is the dim of C.
at::Tensor SumDecayGradient(const at::Tensor& after, const at::Tensor& before,
                            const at::Tensor& all, int64_t token_dim);

// Batched matmul over the last two dims; leading dims are equal and collapse.
at::Tensor Bmm(const at::Tensor& a, const at::Tensor& b);

// The chunk's weights w = exp(sum of log_decay over a range), each formed from exactly its own range: exponents are never
// positive, and -inf needs no case of its own. q, k [B, H, N, C, K]; scores [B, H, N, C, C].
class ChunkWeights {
 public:
  virtual ~ChunkWeights() = default;

  // scale * q_r (w_rs k_s) for s <= r, 0 above the diagonal.
  virtual at::Tensor Scores(const at::Tensor& q, const at::Tensor& k) const = 0;
  // Times scale * P_r (chunk entry to r, inclusive), and times Q_s (after s to the chunk's end).
  virtual at::Tensor WeighIncoming(const at::Tensor& x) const = 0;
  virtual at::Tensor WeighOutgoing(const at::Tensor& x) const = 0;
  // Decay of the state over a chunk [Bg, H, Ng, K or 1].
  virtual const at::Tensor& transition() const = 0;

  // What the backward pass knows of a chunk. S: state before it; R: gradient of the state after it.
  struct Terms {
    at::Tensor q, k;     // [B, H, N, C, K]
    at::Tensor scores;   // [B, H, N, C, C] as Scores gave them
    at::Tensor dscores;  // dout v^T [B, H, N, C, C]; what lies above the diagonal is ignored
    at::Tensor q_state;  // dout S^T [B, H, N, C, K]
    at::Tensor k_state;  // v R^T [B, H, N, C, K]
    at::Tensor
        through;  // rowsum_v(S R) [B, H, N, K]; undefined: no gradient of the decay is wanted
  };
  struct Grads {
    at::Tensor dq, dk;      // [B, H, N, C, K]
    at::Tensor dlog_decay;  // [B, H, N, C(, K)], undefined where `through` is
  };
  // May overwrite q_state and k_state. dq_r = P_r q_state_r + sum_{s<=r} dscores_rs w_rs k_s, dk likewise.
  virtual Grads Gradients(Terms& terms) const = 0;
};

std::unique_ptr<ChunkWeights> MakeScalarWeights(const at::Tensor& log_decay, double scale);
std::unique_ptr<ChunkWeights> MakeChannelWeights(const at::Tensor& log_decay, double scale);

}  // namespace halflife::kernels::internal
