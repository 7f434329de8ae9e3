// Decay that is one number per head and token: weights multiply finished C x C score tiles.
#include <ATen/Parallel.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "kernels/cpu_math.h"
#include "kernels/decay_attention/chunks.h"
#include "kernels/dispatch.h"

namespace halflife::kernels::internal {
namespace {

struct WeightTables {
  at::Tensor intra;       // [Bg, H, Ng, C, C]: scale * w_rs, 0 above the diagonal
  at::Tensor incoming;    // [Bg, H, Ng, C, 1]: scale * P_r
  at::Tensor outgoing;    // [Bg, H, Ng, C, 1]: Q_s
  at::Tensor transition;  // [Bg, H, Ng, 1]
};

// One chunk: row r of the range sums is row r-1 plus log_decay_r, so each sum starts at its own range.
HL_VECTORISED void FillChunk(const float* log_decay, int64_t chunk, float scale, float* intra,
                             float* incoming, float* outgoing, float* transition) {
  float prefix = 0;
  for (int64_t s = 0; s < chunk; ++s) outgoing[s] = 0;  // holds the range sums (s, r] meanwhile
  for (int64_t r = 0; r < chunk; ++r) {
    const float g = log_decay[r];
    prefix += g;
    incoming[r] = prefix;
    float* row = intra + r * chunk;
#pragma omp simd
    for (int64_t s = 0; s < chunk; ++s) {
      const float sum = s < r ? outgoing[s] + g : 0.0f;
      outgoing[s] = sum;
      row[s] = s > r ? 0.0f : scale * Exp(sum);
    }
  }
  *transition = Exp(prefix);
#pragma omp simd
  for (int64_t r = 0; r < chunk; ++r) {
    incoming[r] = scale * Exp(incoming[r]);
    outgoing[r] = Exp(outgoing[r]);
  }
}

WeightTables TablesFused(const at::Tensor& log_decay, double scale) {
  const int64_t batch = log_decay.size(0), heads = log_decay.size(1), chunks = log_decay.size(2),
                chunk = log_decay.size(3);
  const auto options = log_decay.options();
  WeightTables tables = {.intra = at::empty({batch, heads, chunks, chunk, chunk}, options),
                         .incoming = at::empty({batch, heads, chunks, chunk, 1}, options),
                         .outgoing = at::empty({batch, heads, chunks, chunk, 1}, options),
                         .transition = at::empty({batch, heads, chunks, 1}, options)};
  const float* g = log_decay.const_data_ptr<float>();
  float* intra = tables.intra.mutable_data_ptr<float>();
  float* incoming = tables.incoming.mutable_data_ptr<float>();
  float* outgoing = tables.outgoing.mutable_data_ptr<float>();
  float* transition = tables.transition.mutable_data_ptr<float>();
  at::parallel_for(0, batch * heads * chunks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      FillChunk(g + n * chunk, chunk, static_cast<float>(scale), intra + n * chunk * chunk,
                incoming + n * chunk, outgoing + n * chunk, transition + n);
    }
  });
  return tables;
}

WeightTables TablesComposed(const at::Tensor& log_decay, double scale) {
  const int64_t chunk = log_decay.size(3);
  const at::Tensor lower =
      at::ones({chunk, chunk}, log_decay.options().dtype(at::kBool)).tril();  // s <= r
  const at::Tensor strictly = lower.tril(-1);
  // sums[j][s] = sum over s < u <= j of log_decay_u: a running sum over j that starts after s.
  const at::Tensor zero = at::zeros({}, log_decay.options());
  const at::Tensor sums = at::where(strictly, log_decay.unsqueeze(4), zero).cumsum(3);
  const at::Tensor prefix = log_decay.cumsum(3);
  return {.intra = at::where(lower, sums.exp() * scale, zero),
          .incoming = prefix.exp().unsqueeze(4) * scale,
          .outgoing = sums.select(3, chunk - 1).exp().unsqueeze(4),
          .transition = prefix.narrow(3, chunk - 1, 1).exp()};
}

class ScalarWeights : public ChunkWeights {
 public:
  ScalarWeights(const at::Tensor& log_decay, double scale)
      : tables_(IsCpuFloat(log_decay) ? TablesFused(log_decay, scale)
                                      : TablesComposed(log_decay, scale)) {}

  at::Tensor Scores(const at::Tensor& q, const at::Tensor& k) const override {
    return Bmm(q, k.transpose(-1, -2)).mul_(tables_.intra);
  }
  at::Tensor WeighIncoming(const at::Tensor& x) const override { return x * tables_.incoming; }
  at::Tensor WeighOutgoing(const at::Tensor& x) const override { return x * tables_.outgoing; }
  const at::Tensor& transition() const override { return tables_.transition; }

  Grads Gradients(Terms& terms) const override {
    Grads grads;
    if (terms.through.defined()) grads.dlog_decay = DecayGradient(terms);
    const at::Tensor weighted = terms.dscores * tables_.intra;
    grads.dq = Bmm(weighted, terms.k).addcmul_(terms.q_state, tables_.incoming);
    grads.dk = Bmm(weighted.transpose(-1, -2), terms.q).addcmul_(terms.k_state, tables_.outgoing);
    return grads;
  }

 private:
  // The pairs (r, s), s < r, count for the decays of (s, r]; the pairs (r, r) for none.
  at::Tensor DecayGradient(const Terms& terms) const {
    const at::Tensor pairs = (terms.scores * terms.dscores).tril(-1);
    const at::Tensor incoming = (terms.q * terms.q_state).sum(-1) * tables_.incoming.squeeze(4);
    const at::Tensor outgoing = (terms.k * terms.k_state).sum(-1) * tables_.outgoing.squeeze(4);
    return SumDecayGradient(pairs.sum(-1) - pairs.sum(-2) + incoming, outgoing,
                            terms.through.sum(-1) * tables_.transition.squeeze(3), 3);
  }

  WeightTables tables_;
};

}  // namespace

std::unique_ptr<ChunkWeights> MakeScalarWeights(const at::Tensor& log_decay, double scale) {
  return std::make_unique<ScalarWeights>(log_decay, scale);
}

}  // namespace halflife::kernels::internal
