#include "eager.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/diag_embed.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <vector>

namespace halflife::bench {
namespace {

// [B, T, H, X] -> [B, H, N, C, X]
at::Tensor ToChunks(const at::Tensor& x, int64_t chunk) {
  return x.unflatten(1, {x.size(1) / chunk, chunk}).permute({0, 3, 1, 2, 4}).contiguous();
}
at::Tensor FromChunks(const at::Tensor& x) {  // The inverse.
  return x.permute({0, 2, 3, 1, 4}).flatten(1, 2);
}

// Returns 0 where `allowed`, else -inf, to add to an exponent.
at::Tensor LogMask(const at::Tensor& allowed) {
  return at::where(allowed, at::full({}, 0.0, at::kFloat),
                   at::full({}, -std::numeric_limits<double>::infinity(), at::kFloat));
}

// Returns exp(log_decay x distance) below the diagonal, 0 above: [H, n, n].
at::Tensor DecayMask(const at::Tensor& log_decay, const at::Tensor& distance) {
  return at::exp(log_decay.view({-1, 1, 1}) * distance.clamp_min(0)) *
         (distance >= 0).to(at::kFloat);
}

// state[n] = decay[n - 1] state[n - 1] + added[n - 1] over N chunks in sequence: [B, H, N, K, V].
// Faster than a matmul with [N, N] weights, which needs no loop.
at::Tensor ScanChunks(const at::Tensor& added, const std::vector<at::Tensor>& decay) {
  // The gradient of unbind is one stack, that of select a sum.
  const std::vector<at::Tensor> terms = added.unbind(2);
  std::vector<at::Tensor> states = {at::zeros_like(terms[0])};
  for (size_t n = 0; n + 1 < terms.size(); ++n)
    states.push_back(states.back() * decay[n % decay.size()] + terms[n]);
  return at::stack(states, 2);
}

// Returns a b + c d of matrices [B, H, N, ., .], and adds the second product in place.
at::Tensor AddProducts(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                       const at::Tensor& d) {
  const auto flat = [](const at::Tensor& x) { return x.flatten(0, 2); };
  return at::baddbmm(at::bmm(flat(a), flat(b)), flat(c), flat(d)).view(d.sizes());
}

}  // namespace

EagerForm MakeEagerPerHead(const EagerShape& shape, const at::Tensor& log_decay, double scale) {
  const int64_t chunk = shape.chunk_size;
  const at::Tensor position = at::arange(chunk, at::kFloat);
  const at::Tensor intra =
      DecayMask(log_decay, position.unsqueeze(1) - position.unsqueeze(0)).unsqueeze(1) * scale;
  const at::Tensor whole = at::exp(log_decay * chunk).view({-1, 1, 1});  // [H, 1, 1]
  const auto per_row = [&](const at::Tensor& steps) {                    // [H, 1, C, 1]
    return at::exp(log_decay.unsqueeze(1) * steps).unsqueeze(1).unsqueeze(3);
  };
  const at::Tensor to_end = per_row(chunk - 1 - position),
                   from_start = per_row(position + 1) * scale;
  return [=](const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
             const at::Tensor&) {
    const at::Tensor q = ToChunks(q_in, chunk), k = ToChunks(k_in, chunk),
                     v = ToChunks(v_in, chunk);
    const at::Tensor added = at::matmul((k * to_end).transpose(-1, -2), v);  // [B, H, N, K, V]
    const at::Tensor state = ScanChunks(added, {whole});
    const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * intra;
    return FromChunks(AddProducts(q * from_start, state, scores, v));
  };
}

EagerForm MakeEagerPerChannel(const EagerShape& shape, double scale) {
  const int64_t chunk = shape.chunk_size, sub = shape.sub_chunk == 0 ? chunk : shape.sub_chunk;
  const int64_t num_subs = chunk / sub;
  const bool divide = shape.sub_chunk == 0;
  const at::Tensor position = at::arange(chunk), start = at::arange(0, chunk, sub);
  // [S, C, 1]: token j is before sub-chunk s.
  const at::Tensor earlier = LogMask(position.unsqueeze(0) < start.unsqueeze(1)).unsqueeze(2);
  const at::Tensor lower = (position.unsqueeze(1) >= position.unsqueeze(0)).to(at::kFloat);
  const at::Tensor near = at::arange(sub);
  const at::Tensor causal = LogMask(near.unsqueeze(1) >= near.unsqueeze(0)).unsqueeze(2);
  const auto split = [=](const at::Tensor& x) { return x.unflatten(3, {num_subs, sub}); };
  const auto scores = [=](const at::Tensor& q, const at::Tensor& q_from_chunk, const at::Tensor& k,
                          const at::Tensor& log_decay, const at::Tensor& total) {
    if (divide) return at::matmul(q_from_chunk, (k * at::exp(-total)).transpose(-1, -2)) * lower;
    const at::Tensor sub_total = split(total);  // [B, H, N, S, Cs, K]
    const at::Tensor at_start = sub_total.narrow(4, 0, 1) - split(log_decay).narrow(4, 0, 1);
    const at::Tensor q_sub = split(q), k_sub = split(k);
    const at::Tensor q_from_start = q_sub * at::exp(sub_total - at_start);
    const at::Tensor k_to_start = k.unsqueeze(3) * at::exp(at_start - total.unsqueeze(3) + earlier);
    const at::Tensor across = at::matmul(q_from_start, k_to_start.transpose(-1, -2));
    const at::Tensor pair = at::exp(sub_total.unsqueeze(5) - sub_total.unsqueeze(4) + causal);
    // [B, H, N, S, Cs, Cs]
    const at::Tensor within = (q_sub.unsqueeze(5) * k_sub.unsqueeze(4) * pair).sum(-1);
    const at::Tensor diagonal = at::diag_embed(within.permute({0, 1, 2, 4, 5, 3}))
                                    .permute({0, 1, 2, 5, 3, 6, 4})
                                    .reshape(across.sizes());
    return (across + diagonal).flatten(3, 4);
  };
  return [=](const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
             const at::Tensor& log_decay_in) {
    const at::Tensor q = ToChunks(q_in, chunk) * scale, k = ToChunks(k_in, chunk),
                     v = ToChunks(v_in, chunk), log_decay = ToChunks(log_decay_in, chunk);
    const at::Tensor total = log_decay.cumsum(3);  // [B, H, N, C, K]
    const at::Tensor chunk_total = total.narrow(3, chunk - 1, 1);
    // [B, H, N, K, V]
    const at::Tensor added = at::matmul((k * at::exp(chunk_total - total)).transpose(-1, -2), v);
    const at::Tensor carry = at::exp(chunk_total.squeeze(3)).unsqueeze(4);  // [B, H, N, K, 1]
    const at::Tensor state = ScanChunks(added, carry.unbind(2));
    const at::Tensor q_from_chunk = q * at::exp(total);
    return FromChunks(
        AddProducts(q_from_chunk, state, scores(q, q_from_chunk, k, log_decay, total), v));
  };
}

}  // namespace halflife::bench
