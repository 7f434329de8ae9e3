#include "eager.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu_indices.h>

#include <cmath>
#include <vector>

namespace halflife::bench {
namespace {

using ops::PolynomialAttentionConfig;

at::Tensor Similarity(const at::Tensor& q, const at::Tensor& k,
                      const PolynomialAttentionConfig& config) {
  const at::Tensor s = at::matmul(q * config.scale, k.transpose(-1, -2));
  const kernels::PolynomialWeights& w = config.weights;
  if (w.a0 == 0 && w.a1 == 0) return s.square() * w.a2;
  return (s * w.a2 + w.a1) * s + w.a0;
}
// x is [..., V + 1]. Its last column is the sum of similarities.
at::Tensor Divide(const at::Tensor& x, const PolynomialAttentionConfig& config) {
  const int64_t width = x.size(-1) - 1;
  return x.narrow(-1, 0, width) / (x.narrow(-1, width, 1) + config.norm_eps);
}
at::Tensor WithOnes(const at::Tensor& v) {
  return at::cat({v, at::ones_like(v.narrow(-1, 0, 1))}, -1);
}

// Processes row by row, because otherwise the scores of all rows are in memory at once.
at::Tensor Quadratic(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const PolynomialAttentionConfig& config) {
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const auto heads = [&](const at::Tensor& x) { return x.select(0, b).transpose(0, 1); };
    const at::Tensor scores = Similarity(heads(q), heads(k), config).tril();
    rows.push_back(Divide(at::matmul(scores, WithOnes(heads(v))), config).transpose(0, 1));
  }
  return at::stack(rows);
}

// phi(x) with phi(q) . phi(k) = kappa, [..., F].
at::Tensor Features(const at::Tensor& x, bool packed, const PolynomialAttentionConfig& config) {
  std::vector<at::Tensor> orders;
  const kernels::PolynomialWeights& w = config.weights;
  const int64_t d = x.size(-1);
  if (w.a0 != 0) orders.push_back(at::full_like(x.narrow(-1, 0, 1), std::sqrt(w.a0)));
  if (w.a1 != 0) orders.push_back(x * std::sqrt(w.a1 * config.scale));
  const double second = std::sqrt(w.a2) * config.scale;
  if (packed) {
    const at::Tensor pairs = at::triu_indices(d, d);
    const at::Tensor weights =
        (at::ones({pairs.size(1)}) + (pairs.select(0, 0) != pairs.select(0, 1))).sqrt() * second;
    orders.push_back(x.index_select(-1, pairs.select(0, 0)) *
                     x.index_select(-1, pairs.select(0, 1)) * weights);
  } else {
    orders.push_back(((x * second).unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2));
  }
  return orders.size() == 1 ? orders[0] : at::cat(orders, -1);
}

at::Tensor Chunked(const EagerForm& form, const at::Tensor& q_in, const at::Tensor& k_in,
                   const at::Tensor& v_in, const PolynomialAttentionConfig& config) {
  const auto chunks = [&](const at::Tensor& x) {  // [B, T, H, X] -> [B, H, N, C, X]
    return x.unflatten(1, {x.size(1) / form.chunk_size, form.chunk_size})
        .permute({0, 3, 1, 2, 4})
        .contiguous();
  };
  const auto flat = [](const at::Tensor& x) { return x.flatten(0, 2); };
  const at::Tensor q = chunks(q_in), k = chunks(k_in), v = WithOnes(chunks(v_in));
  const at::Tensor added =  // [B, H, N, F, V + 1]
      at::matmul(Features(k, form.packed, config).transpose(-1, -2), v);
  const at::Tensor before = at::cumsum(added, 2) - added;
  const at::Tensor scores = Similarity(q, k, config).tril();
  const at::Tensor sums = at::baddbmm(at::bmm(flat(Features(q, form.packed, config)), flat(before)),
                                      flat(scores), flat(v))
                              .view(v.sizes());
  return Divide(sums, config).permute({0, 2, 3, 1, 4}).flatten(1, 2);
}

}  // namespace

at::Tensor RunEager(const EagerForm& form, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const PolynomialAttentionConfig& config) {
  return form.chunk_size == 0 ? Quadratic(q, k, v, config) : Chunked(form, q, k, v, config);
}

}  // namespace halflife::bench
