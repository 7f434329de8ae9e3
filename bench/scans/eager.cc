#include "eager.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace halflife::bench {
namespace {

// Returns sums over the tokens before each token: [..., C, *] along dim 2.
at::Tensor SumsBefore(const at::Tensor& x) { return x.cumsum(2) - x; }

// [B, N, D] each, before every chunk: the sums A and B with the scale o.
struct ChunkStates {
  at::Tensor a, b, o;
};
// Scans the chunks' states. Each chunk's sums are relative to the scale `top` [B, N, D] at its end;
// `decay` is C w.
ChunkStates Scan(const at::Tensor& a, const at::Tensor& b, const at::Tensor& top,
                 const at::Tensor& decay) {
  at::Tensor sum_a = at::zeros_like(a.select(1, 0)), sum_b = sum_a,
             scale = at::full_like(sum_a, -1e30);
  Tensors as, bs, os;
  for (int64_t n = 0; n < a.size(1); ++n) {
    as.push_back(sum_a), bs.push_back(sum_b), os.push_back(scale);
    const at::Tensor faded = scale + decay, own = top.select(1, n) + decay;
    const at::Tensor next = at::maximum(faded, own).detach();
    const at::Tensor past = (faded - next).exp(), now = (own - next).exp();
    sum_a = past * sum_a + now * a.select(1, n);
    sum_b = past * sum_b + now * b.select(1, n);
    scale = next;
  }
  return {at::stack(as, 1), at::stack(bs, 1), at::stack(os, 1)};
}

at::Tensor WkvInChunks(const Tensors& in, int64_t size) {
  const int64_t batch = in[0].size(0), seq_len = in[0].size(1), dim = in[0].size(2);
  const auto chunks = [&](const at::Tensor& x) {
    return x.view({batch, seq_len / size, size, dim});
  };
  const at::Tensor k = chunks(in[0]), v = chunks(in[1]), w = in[2], u = in[3];
  const at::Tensor place = at::arange(size, k.options().requires_grad(false)).view({size, 1});
  const at::Tensor shifted =
      k - (place + 1) * w;  // The weight of a token at time t is e^{t w} times e^this.
  const at::Tensor top = shifted.detach().amax(2, /*keepdim=*/true);
  const at::Tensor weight = (shifted - top).exp(), weighted = weight * v;
  const ChunkStates states =
      Scan(weighted.sum(2), weight.sum(2), top.squeeze(2), w * static_cast<double>(size));
  const at::Tensor before = states.o.unsqueeze(2),
                   own = u + k - place * w;  // Without e^{t w}, in all three.
  const at::Tensor scale = at::maximum(at::maximum(before, top), own.detach());
  const at::Tensor past = (before - scale).exp(), local = (top - scale).exp(),
                   now = (own - scale).exp();
  const at::Tensor numerator =
      past * states.a.unsqueeze(2) + local * SumsBefore(weighted) + now * v;
  const at::Tensor denominator = past * states.b.unsqueeze(2) + local * SumsBefore(weight) + now;
  return (numerator / denominator).view({batch, seq_len, dim});
}

at::Tensor WkvByTokens(const Tensors& in) {
  at::Tensor a = at::zeros_like(in[0].select(1, 0)), b = a, o = at::full_like(a, -1e30);
  Tensors outs;
  for (int64_t t = 0; t < in[0].size(1); ++t) {
    const at::Tensor k = in[0].select(1, t), v = in[1].select(1, t), own = in[3] + k;
    const at::Tensor top = at::maximum(o, own).detach();
    const at::Tensor past = (o - top).exp(), now = (own - top).exp();
    outs.push_back((past * a + now * v) / (past * b + now));
    const at::Tensor faded = o + in[2], next = at::maximum(faded, k).detach();
    const at::Tensor keep = (faded - next).exp(), add = (k - next).exp();
    a = keep * a + add * v, b = keep * b + add, o = next;
  }
  return at::stack(outs, 1);
}

struct ScanTerms {
  at::Tensor log_decay, input;  // [B, T, I, N]
};
ScanTerms TermsOf(const Tensors& in) {
  const at::Tensor step = at::softplus(in[1] + in[2]);
  return {step.unsqueeze(3) * in[3], (step * in[0]).unsqueeze(3) * in[4].unsqueeze(2)};
}
at::Tensor Finish(const Tensors& in, const at::Tensor& states) {
  return at::einsum("btin,btn->bti", {states, in[5]}) + in[6] * in[0];
}

at::Tensor ScanInChunks(const Tensors& in, int64_t size) {
  const auto [log_decay, input] = TermsOf(in);
  const auto chunks = [&](const at::Tensor& x) { return x.unflatten(1, {-1, size}); };
  const at::Tensor sums = chunks(log_decay).cumsum(2);
  const at::Tensor own = (chunks(input) * (-sums).exp()).cumsum(2);  // Without e^{sums}.
  const at::Tensor decays = sums.exp();
  at::Tensor state = at::zeros_like(own.select(1, 0).select(1, 0));
  Tensors before;
  for (int64_t n = 0; n < own.size(1); ++n) {
    before.push_back(state);
    state =
        decays.select(1, n).select(1, size - 1) * (state + own.select(1, n).select(1, size - 1));
  }
  return Finish(in, (decays * (own + at::stack(before, 1).unsqueeze(2))).flatten(1, 2));
}

at::Tensor ScanByTokens(const Tensors& in) {
  const auto [log_decay, input] = TermsOf(in);
  const at::Tensor decay = log_decay.exp();
  at::Tensor state = at::zeros_like(input.select(1, 0));
  Tensors states;
  for (int64_t t = 0; t < input.size(1); ++t) {
    state = decay.select(1, t) * state + input.select(1, t);
    states.push_back(state);
  }
  return Finish(in, at::stack(states, 1));
}

}  // namespace

std::vector<EagerForm> EagerWkv() {
  std::vector<EagerForm> forms = {{"eager_tokens", WkvByTokens}};
  for (const int64_t size : {16, 32, 64})
    forms.push_back({"eager_chunk_" + std::to_string(size),
                     [=](const Tensors& in) { return WkvInChunks(in, size); }});
  return forms;
}

std::vector<EagerForm> EagerScan() {
  std::vector<EagerForm> forms = {{"eager_tokens", ScanByTokens}};
  for (const int64_t size : {16, 32})
    forms.push_back({"eager_chunk_" + std::to_string(size),
                     [=](const Tensors& in) { return ScanInChunks(in, size); }});
  return forms;
}

}  // namespace halflife::bench
