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

  struct IntraGrads {
    at::Tensor dq, dk;  // [B, H, N, C, K]
    at::Tensor decay;   // h_r = q_r dq_r - k_r dk_r, diagonal left out; undefined unless asked for
  };
  // dscores = dout v^T, all pairs; those above the diagonal are ignored.
  virtual IntraGrads IntraBackward(const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& scores, const at::Tensor& dscores,
                                   bool want_decay) const = 0;
  // Sum over the channels that share a decay: [.., K] -> [..] for scalar decay, itself for channel decay.
  virtual at::Tensor SumOverSharedChannels(const at::Tensor& x) const = 0;
};

std::unique_ptr<ChunkWeights> MakeScalarWeights(const at::Tensor& log_decay, double scale);
std::unique_ptr<ChunkWeights> MakeChannelWeights(const at::Tensor& log_decay, double scale);

}  // namespace halflife::kernels::internal
