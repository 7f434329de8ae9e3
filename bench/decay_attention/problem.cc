#include "problem.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/decay_attention/decay_attention_reference.h"
#include "ops/decay_attention/decay_attention.h"
#include "support/measure.h"

namespace halflife::bench {
namespace {

std::vector<double> ValuesOf(const at::Tensor& x) {
  const at::Tensor wide = x.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* const data = wide.const_data_ptr<double>();
  return {data, data + wide.numel()};
}

double RelativeRms(const at::Tensor& got, const std::vector<double>& want) {
  const std::vector<double> values = ValuesOf(got);
  HL_CHECK(values.size() == want.size(), values.size(), " values, not ", want.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (values[i] - want[i]) * (values[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

// [.., heads, width] summed over each group of `sharing` adjacent heads.
std::vector<double> SumOfHeads(const std::vector<double>& x, int64_t sharing, int64_t width) {
  std::vector<double> sums(x.size() / sharing);
  for (size_t i = 0; i < x.size(); ++i) sums[i / (sharing * width) * width + i % width] += x[i];
  return sums;
}

// [B, T, H, width] summed over all dimensions that log_decay does not have.
std::vector<double> PerTokenOf(const std::vector<double>& per_channel, int64_t dim) {
  std::vector<double> sums(per_channel.size() / dim);
  for (size_t i = 0; i < per_channel.size(); ++i) sums[i / dim] += per_channel[i];
  return sums;
}

}  // namespace

Problem::Problem(const Shape& shape, const at::TensorOptions& options)
    : scale(1 / std::sqrt(static_cast<double>(shape.dim))), segments(shape.segments) {
  const auto rows = [&](int64_t heads, int64_t width) {
    return at::randn({shape.batch, shape.seq_len, heads, width}, options);
  };
  q = rows(shape.groups(), shape.dim).requires_grad_();
  k = rows(shape.groups(), shape.dim).requires_grad_();
  v = rows(shape.heads, shape.values()).requires_grad_();
  dout = rows(shape.heads, shape.values());
  chunks = ops::MakeSequenceChunks({.batch = shape.batch, .seq_len = shape.seq_len}, q.device());
  const at::TensorOptions wide = options.dtype(at::kFloat);
  if (shape.kind == "per_head") {
    log_decay = at::log1p(-at::exp2(-5 - at::arange(shape.heads, wide)));
  } else if (shape.kind == "per_token") {
    log_decay = (at::rand({shape.batch, shape.seq_len, shape.heads}, wide) * -0.2).requires_grad_();
  } else {
    HL_CHECK_AS(ExitCode::kUsage, shape.kind == "per_channel", "unknown kind '", shape.kind,
                "'. Use per_head, per_token or per_channel.");
    log_decay = (at::rand({shape.batch, shape.seq_len, shape.heads, shape.dim}, wide) * -0.2)
                    .requires_grad_();
  }
}

std::vector<at::Tensor> Problem::leaves() const {
  std::vector<at::Tensor> all = {q, k, v};
  if (log_decay.requires_grad()) all.push_back(log_decay);
  return all;
}

at::Tensor Ours(const Problem& p) {
  return ops::DecayAttention({.q = p.q,
                              .k = p.k,
                              .v = p.v,
                              .log_decay = p.log_decay,
                              .chunks = p.chunks,
                              .initial_state = {}},
                             {.scale = p.scale, .num_segments = p.segments})
      .out;
}

std::vector<at::Tensor> OursWithGradients(const Problem& p) {
  return torch::autograd::grad({Ours(p)}, p.leaves(), {p.dout});
}

double Flops(const Shape& shape, bool backward) {
  const double C = 64, K = static_cast<double>(shape.dim), V = static_cast<double>(shape.values());
  const double forward = 2 * C * (K + V) + 4 * K * V;
  const double both = forward + 2 * C * (3 * K + 2 * V) + 10 * K * V;
  return static_cast<double>(shape.batch * shape.seq_len * shape.heads) *
         (backward ? both : forward);
}

double CompulsoryBytes(const Shape& shape, int64_t element_bytes, bool backward) {
  const auto heads = static_cast<double>(shape.heads), element = static_cast<double>(element_bytes);
  const double keys = static_cast<double>(shape.groups() * shape.dim) * element;  // Per token.
  const double values = static_cast<double>(shape.heads * shape.values()) * element;
  const double decay = shape.kind == "per_head"    ? 0
                       : shape.kind == "per_token" ? 4 * heads
                                                   : 4 * heads * static_cast<double>(shape.dim);
  const double forward = 2 * keys + 2 * values + decay;             // q, k; v, out
  const double both = forward + 4 * keys + 3 * values + 2 * decay;  // q, k, dq, dk; v, dout, dv
  return static_cast<double>(shape.batch * shape.seq_len) * (backward ? both : forward);
}

double WorstError(const Shape& shape, const at::TensorOptions& options) {
  Shape small = shape;
  small.batch = 1, small.heads = 2, small.seq_len = std::min<int64_t>(shape.seq_len, 300);
  small.qk_heads = shape.groups() == shape.heads ? 2 : 1;
  const Problem p(small, options);
  const auto of_each_head = [&](const at::Tensor& x) {
    return ValuesOf(x.detach().expand({1, small.seq_len, small.heads, small.dim}));
  };
  kernels::DecayReferenceProblem oracle;
  oracle.seq_len = small.seq_len;
  oracle.num_heads = small.heads;
  oracle.head_dim_k = small.dim;
  oracle.head_dim_v = small.values();
  oracle.scale = p.scale;
  oracle.q = of_each_head(p.q);
  oracle.k = of_each_head(p.k);
  oracle.v = ValuesOf(p.v);
  oracle.dout = ValuesOf(p.dout);
  at::Tensor decay = p.log_decay.detach();
  if (decay.dim() == 1) decay = decay.view({1, 1, small.heads});
  if (decay.dim() == 3) decay = decay.unsqueeze(3);
  oracle.log_decay = of_each_head(decay);
  const kernels::DecayReferenceResult want = kernels::DecayReference(oracle);
  const std::vector<at::Tensor> grads = OursWithGradients(p);
  double worst = RelativeRms(Ours(p), want.out);
  const int64_t sharing = small.heads / small.groups();
  worst = Worse(worst, RelativeRms(grads[0], SumOfHeads(want.dq, sharing, small.dim)));
  worst = Worse(worst, RelativeRms(grads[1], SumOfHeads(want.dk, sharing, small.dim)));
  worst = Worse(worst, RelativeRms(grads[2], want.dv));
  if (grads.size() > 3)
    worst = Worse(worst, RelativeRms(grads[3], shape.kind == "per_token"
                                                   ? PerTokenOf(want.dlog_decay, small.dim)
                                                   : want.dlog_decay));
  return worst;
}

}  // namespace halflife::bench
