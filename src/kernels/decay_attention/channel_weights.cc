// Decay per key channel: weights cannot multiply finished scores, they are folded into the operands. Rows go in tiles of
// 16. Between tiles, query row r of tile i carries the decay from the tile's entry to r, and key row s that from after s
// to the same entry: both factors are <= 1 and never smaller than the weight they make up. Inside a diagonal tile the
// weight of each pair is formed on its own.
#include <ATen/ops/cumsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

#include "kernels/decay_attention/chunks.h"
#include "kernels/decay_attention/diagonal_tile.h"
#include "kernels/dispatch.h"

namespace halflife::kernels::internal {
namespace {

// Sums over the tokens after each one, within the tile; x [.., R, K], over dim -2.
at::Tensor SumOfLater(const at::Tensor& x) {
  const int64_t rows = x.size(-2);
  at::Tensor out = at::zeros_like(x, at::MemoryFormat::Contiguous);
  if (rows > 1) {
    const at::Tensor later = x.narrow(-2, 1, rows - 1).flip({-2}).cumsum(-2).flip({-2});
    out.narrow(-2, 0, rows - 1).copy_(later);
  }
  return out;
}
at::Tensor SumOfEarlier(const at::Tensor& x) {
  const int64_t rows = x.size(-2);
  at::Tensor out = at::zeros_like(x, at::MemoryFormat::Contiguous);
  if (rows > 1) out.narrow(-2, 1, rows - 1).copy_(x.narrow(-2, 0, rows - 1).cumsum(-2));
  return out;
}

class ChannelWeights : public ChunkWeights {
 public:
  ChannelWeights(const at::Tensor& log_decay, double scale)
      : scale_(scale), log_decay_(log_decay), num_tiles_(log_decay.size(3) / kTile) {
    const at::Tensor tiles = log_decay.unflatten(3, {num_tiles_, kTile});  // [B, H, N, I, 16, K]
    const at::Tensor prefix = tiles.cumsum(4);
    const at::Tensor suffix = SumOfLater(tiles);
    const at::Tensor totals = prefix.select(4, kTile - 1);  // [B, H, N, I, K]
    in_tile_ = prefix.exp().flatten(3, 4);
    incoming_ = (prefix + SumOfEarlier(totals).unsqueeze(4)).exp().flatten(3, 4) * scale;
    outgoing_ = (suffix + SumOfLater(totals).unsqueeze(4)).exp().flatten(3, 4);
    transition_ = totals.sum(3).exp();
    for (int64_t i = 1; i < num_tiles_; ++i) {
      const at::Tensor between = SumOfLater(totals.narrow(3, 0, i)).unsqueeze(4);
      to_tile_.push_back((suffix.narrow(3, 0, i) + between).exp().flatten(3, 4));
    }
  }

  at::Tensor Scores(const at::Tensor& q, const at::Tensor& k) const override {
    const int64_t chunk = q.size(3);
    at::Tensor scores =
        at::zeros({q.size(0), q.size(1), q.size(2), chunk, chunk}, q.options());
    const at::Tensor q_in_tile = q * in_tile_;
    for (int64_t i = 1; i < num_tiles_; ++i) {
      const at::Tensor keys = KeysToTile(k, i);
      Block(scores, i).copy_(Bmm(Tile(q_in_tile, i), keys.transpose(-1, -2)));
    }
    scores.mul_(scale_);
    DiagonalScores(q, k, log_decay_, scale_, scores);
    return scores;
  }

  at::Tensor WeighIncoming(const at::Tensor& x) const override { return x * incoming_; }
  at::Tensor WeighOutgoing(const at::Tensor& x) const override { return x * outgoing_; }
  const at::Tensor& transition() const override { return transition_; }

  IntraGrads IntraBackward(const at::Tensor& q, const at::Tensor& k, const at::Tensor&,
                           const at::Tensor& dscores, bool want_decay) const override {
    at::Tensor dq = at::zeros_like(q), dk = at::zeros_like(k);
    const at::Tensor q_in_tile = q * in_tile_;
    for (int64_t i = 1; i < num_tiles_; ++i) {
      const at::Tensor pairs = Block(dscores, i);
      Tile(dq, i).copy_(Bmm(pairs, KeysToTile(k, i)));
      dk.narrow(3, 0, i * kTile)
          .addcmul_(to_tile_[i - 1], Bmm(pairs.transpose(-1, -2), Tile(q_in_tile, i)), scale_);
    }
    dq.mul_(in_tile_).mul_(scale_);
    DiagonalGradients(q, k, log_decay_, scale_, dscores, dq, dk);
    IntraGrads grads = {.dq = dq, .dk = dk, .decay = {}};
    if (want_decay) grads.decay = q * dq - k * dk;
    // The pairs (r, r) have no decay: they enter only now.
    const at::Tensor own = dscores.diagonal(0, -2, -1).unsqueeze(-1) * scale_;
    grads.dq.addcmul_(own, k);
    grads.dk.addcmul_(own, q);
    return grads;
  }
  at::Tensor SumOverSharedChannels(const at::Tensor& x) const override { return x; }

 private:
  static at::Tensor Tile(const at::Tensor& x, int64_t i) { return x.narrow(3, i * kTile, kTile); }
  // Scores of tile i's queries against all earlier tiles.
  static at::Tensor Block(const at::Tensor& scores, int64_t i) {
    return Tile(scores, i).narrow(4, 0, i * kTile);
  }
  at::Tensor KeysToTile(const at::Tensor& k, int64_t i) const {
    return k.narrow(3, 0, i * kTile) * to_tile_[i - 1];
  }

  double scale_;
  at::Tensor log_decay_;
  int64_t num_tiles_;
  at::Tensor in_tile_;                // [B, H, N, C, K]: tile entry to r, inclusive
  std::vector<at::Tensor> to_tile_;   // for tile i >= 1 [B, H, N, 16 i, K]: after s to the entry of tile i
  at::Tensor incoming_, outgoing_;    // [B, H, N, C, K]: scale * P_r, Q_s
  at::Tensor transition_;             // [B, H, N, K]
};

}  // namespace

std::unique_ptr<ChunkWeights> MakeChannelWeights(const at::Tensor& log_decay, double scale) {
  return std::make_unique<ChannelWeights>(log_decay, scale);
}

}  // namespace halflife::kernels::internal
