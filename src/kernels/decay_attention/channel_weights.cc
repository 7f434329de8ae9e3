// Decay per key channel: weights cannot multiply finished scores, they are folded into the operands. Rows go in tiles of
// 16. Between tiles, query row r of tile i carries the decay from the tile's entry to r, and key row s that from after s
// to the same entry: both factors are <= 1 and never smaller than the weight they make up. Inside a diagonal tile the
// weight of each pair is formed on its own.
#include <ATen/Parallel.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

#include "kernels/cpu_math.h"
#include "kernels/decay_attention/channel_loops.h"
#include "kernels/decay_attention/chunks.h"
#include "kernels/decay_attention/diagonal_tile.h"
#include "kernels/dispatch.h"

namespace halflife::kernels::internal {
namespace {

// Sums over the tokens after (before) each one; x [.., R, K], over dim -2.
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

struct Factors {
  at::Tensor in_tile;  // [B, H, N, C, K]: scale * (tile entry to r, inclusive)
  std::vector<at::Tensor>
      to_tile;  // for tile i >= 1 [B, H, N, 16 i, K]: after s to the entry of tile i
  at::Tensor incoming, outgoing;  // [B, H, N, C, K]: scale * P_r, Q_s
  at::Tensor transition;          // [B, H, N, K]
};

Factors FactorsComposed(const at::Tensor& log_decay, double scale) {
  const int64_t num_tiles = log_decay.size(3) / kTile;
  const at::Tensor tiles = log_decay.unflatten(3, {num_tiles, kTile});  // [B, H, N, I, 16, K]
  const at::Tensor prefix = tiles.cumsum(4);
  const at::Tensor suffix = SumOfLater(tiles);
  const at::Tensor totals = prefix.select(4, kTile - 1);  // [B, H, N, I, K]
  Factors factors = {
      .in_tile = prefix.exp().flatten(3, 4) * scale,
      .to_tile = {},
      .incoming = (prefix + SumOfEarlier(totals).unsqueeze(4)).exp().flatten(3, 4) * scale,
      .outgoing = (suffix + SumOfLater(totals).unsqueeze(4)).exp().flatten(3, 4),
      .transition = totals.sum(3).exp()};
  for (int64_t i = 1; i < num_tiles; ++i) {
    const at::Tensor between = SumOfLater(totals.narrow(3, 0, i)).unsqueeze(4);
    factors.to_tile.push_back((suffix.narrow(3, 0, i) + between).exp().flatten(3, 4));
  }
  return factors;
}

Factors FactorsFused(const at::Tensor& log_decay, double scale) {
  const int64_t chunk = log_decay.size(3), dim = log_decay.size(4), num_tiles = chunk / kTile;
  const int64_t num_chunks = log_decay.numel() / (chunk * dim);
  std::vector<int64_t> sizes(log_decay.sizes().begin(), log_decay.sizes().end());
  Factors factors = {
      .in_tile = at::empty_like(log_decay),
      .to_tile = {},
      .incoming = at::empty_like(log_decay),
      .outgoing = at::empty_like(log_decay),
      .transition = at::empty({sizes[0], sizes[1], sizes[2], dim}, log_decay.options())};
  std::vector<float*> to_tile(num_tiles, nullptr);
  for (int64_t i = 1; i < num_tiles; ++i) {
    sizes[3] = i * kTile;
    factors.to_tile.push_back(at::empty(sizes, log_decay.options()));
    to_tile[i] = factors.to_tile.back().mutable_data_ptr<float>();
  }
  const float* g = log_decay.const_data_ptr<float>();
  float* in_tile = factors.in_tile.mutable_data_ptr<float>();
  float* incoming = factors.incoming.mutable_data_ptr<float>();
  float* outgoing = factors.outgoing.mutable_data_ptr<float>();
  float* transition = factors.transition.mutable_data_ptr<float>();
  at::parallel_for(0, num_chunks, 4, [&](int64_t begin, int64_t end) {
    std::vector<float*> pointers(num_tiles, nullptr);
    std::vector<float> sums(dim);
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t i = 1; i < num_tiles; ++i) pointers[i] = to_tile[i] + n * i * kTile * dim;
      const int64_t offset = n * chunk * dim;
      FillChannelFactors({.log_decay = g + offset,
                          .num_tiles = num_tiles,
                          .dim = dim,
                          .scale = static_cast<float>(scale),
                          .in_tile = in_tile + offset,
                          .incoming = incoming + offset,
                          .outgoing = outgoing + offset,
                          .transition = transition + n * dim,
                          .to_tile = pointers.data(),
                          .sums = sums.data()});
    }
  });
  return factors;
}

class ChannelWeights : public ChunkWeights {
 public:
  ChannelWeights(const at::Tensor& log_decay, double scale)
      : scale_(scale),
        log_decay_(log_decay),
        num_tiles_(log_decay.size(3) / kTile),
        factors_(IsCpuFloat(log_decay) ? FactorsFused(log_decay, scale)
                                       : FactorsComposed(log_decay, scale)) {}

  at::Tensor Scores(const at::Tensor& q, const at::Tensor& k) const override {
    const int64_t chunk = q.size(3);
    at::Tensor scores = at::zeros({q.size(0), q.size(1), q.size(2), chunk, chunk}, q.options());
    const at::Tensor q_in_tile = q * factors_.in_tile;
    for (int64_t i = 1; i < num_tiles_; ++i)
      Block(scores, i).copy_(Bmm(Tile(q_in_tile, i), KeysToTile(k, i).transpose(-1, -2)));
    DiagonalScores(q, k, log_decay_, scale_, scores);
    return scores;
  }

  at::Tensor WeighIncoming(const at::Tensor& x) const override { return x * factors_.incoming; }
  at::Tensor WeighOutgoing(const at::Tensor& x) const override { return x * factors_.outgoing; }
  const at::Tensor& transition() const override { return factors_.transition; }

  Grads Gradients(Terms& terms) const override {
    const at::Tensor& q = terms.q;
    const at::Tensor& k = terms.k;
    Grads grads = {.dq = at::zeros_like(q), .dk = at::zeros_like(k), .dlog_decay = {}};
    const at::Tensor q_in_tile = q * factors_.in_tile;
    for (int64_t i = 1; i < num_tiles_; ++i) {
      const at::Tensor pairs = Block(terms.dscores, i);
      Tile(grads.dq, i).copy_(Bmm(pairs, KeysToTile(k, i)));
      grads.dk.narrow(3, 0, i * kTile)
          .addcmul_(factors_.to_tile[i - 1], Bmm(pairs.transpose(-1, -2), Tile(q_in_tile, i)));
    }
    grads.dq.mul_(factors_.in_tile);
    DiagonalGradients(q, k, log_decay_, scale_, terms.dscores, grads.dq, grads.dk);
    if (IsCpuFloat(q)) {
      FinishFused(terms, grads);
    } else {
      FinishComposed(terms, grads);
    }
    return grads;
  }

 private:
  // Adds the paths through the states and the pairs (r, r), which have no decay, to dq and dk of the pairs s < r; forms
  // the gradient of the decay in between.
  void FinishComposed(const Terms& terms, Grads& grads) const {
    const at::Tensor dq_incoming = terms.q_state * factors_.incoming;
    const at::Tensor dk_outgoing = terms.k_state * factors_.outgoing;
    if (terms.through.defined())
      grads.dlog_decay =
          SumDecayGradient(terms.q * (grads.dq + dq_incoming) - terms.k * grads.dk,
                           terms.k * dk_outgoing, terms.through * factors_.transition, 3);
    const at::Tensor own = terms.dscores.diagonal(0, -2, -1).unsqueeze(-1) * scale_;
    grads.dq.add_(dq_incoming).addcmul_(own, terms.k);
    grads.dk.add_(dk_outgoing).addcmul_(own, terms.q);
  }

  void FinishFused(const Terms& terms, Grads& grads) const {
    const int64_t chunk = terms.q.size(3), dim = terms.q.size(4);
    const at::Tensor through = terms.through.defined() ? terms.through.contiguous() : at::Tensor();
    if (through.defined()) grads.dlog_decay = at::empty_like(terms.q);
    const ChannelFinish all = {
        .q = terms.q.const_data_ptr<float>(),
        .k = terms.k.const_data_ptr<float>(),
        .dscores = terms.dscores.const_data_ptr<float>(),
        .q_state = terms.q_state.const_data_ptr<float>(),
        .k_state = terms.k_state.const_data_ptr<float>(),
        .incoming = factors_.incoming.const_data_ptr<float>(),
        .outgoing = factors_.outgoing.const_data_ptr<float>(),
        .transition = factors_.transition.const_data_ptr<float>(),
        .through = through.defined() ? through.const_data_ptr<float>() : nullptr,
        .dq = grads.dq.mutable_data_ptr<float>(),
        .dk = grads.dk.mutable_data_ptr<float>(),
        .dlog_decay = through.defined() ? grads.dlog_decay.mutable_data_ptr<float>() : nullptr,
        .chunk = chunk,
        .dim = dim,
        .scale = static_cast<float>(scale_)};
    at::parallel_for(0, terms.q.numel() / (chunk * dim), 4, [&](int64_t begin, int64_t end) {
      std::vector<float> sums(dim);
      for (int64_t n = begin; n < end; ++n) FinishChannelChunk(all, n, sums.data());
    });
  }

  static at::Tensor Tile(const at::Tensor& x, int64_t i) { return x.narrow(3, i * kTile, kTile); }
  // Scores of tile i's queries against all earlier tiles.
  static at::Tensor Block(const at::Tensor& scores, int64_t i) {
    return Tile(scores, i).narrow(4, 0, i * kTile);
  }
  at::Tensor KeysToTile(const at::Tensor& k, int64_t i) const {
    return k.narrow(3, 0, i * kTile) * factors_.to_tile[i - 1];
  }

  double scale_;
  at::Tensor log_decay_;
  int64_t num_tiles_;
  Factors factors_;
};

}  // namespace

std::unique_ptr<ChunkWeights> MakeChannelWeights(const at::Tensor& log_decay, double scale) {
  return std::make_unique<ChannelWeights>(log_decay, scale);
}

}  // namespace halflife::kernels::internal
