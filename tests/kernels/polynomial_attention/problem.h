// Random problems of polynomial attention, the oracle's results, and the kernels' results in any
// form.
//
//   const Problem problem = MakeProblem({.seq_len = 65, .kernel = kBased}, seed);
//   const Answer want = Oracle(problem), got = RunKernel(problem, {.chunk_size = 16});
//   ExpectClose(got, want, 1e-5);
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/polynomial_attention/polynomial_attention_reference.h"
#include "ops/polynomial_attention/polynomial_attention.h"
#include "ops/random_tensors.h"

namespace halflife::kernels::test {

using halflife::test::BitEqual;
using halflife::test::Close;
using halflife::test::Normal;
using halflife::test::ToTensor;
using halflife::test::ToValues;

struct Kernel {
  const char* name;
  PolynomialWeights weights;
  bool normalise;
};
inline constexpr Kernel kBased = {"based", {1, 1, 0.5}, true},
                        kRebased = {"rebased", {0, 0, 1}, true},
                        kShifted = {"shifted parabola", {0.5, 1, 0.5}, true},
                        kLinear = {"linear", {0, 1, 0}, false};
inline constexpr Kernel kKernels[] = {kBased, kRebased, kShifted, kLinear};

struct ProblemShape {
  int64_t batch = 1, seq_len = 65, heads = 2, dim = 16, dim_v = 10;
  Kernel kernel = kBased;
  bool states = false;
  std::vector<int32_t> document_starts = {};  // Flat token numbers.
  double norm_eps = 1e-12;
};

// fp64 values that are representable in the kernels' type.
struct Problem {
  ProblemShape shape;
  at::Tensor q, k, v, dout;
  ops::PolynomialState initial, dfinal;

  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.dim)); }
  ops::PolynomialAttentionConfig Config() const {
    return {.scale = scale(),
            .weights = shape.kernel.weights,
            .normalise = shape.kernel.normalise,
            .norm_eps = shape.norm_eps,
            .want_final_state = shape.states};
  }
};

inline Problem MakeProblem(const ProblemShape& s, uint64_t seed,
                           at::ScalarType stored = at::kFloat) {
  const auto draw = [&](std::vector<int64_t> shape, uint64_t offset) {
    return Normal(std::move(shape), seed + offset).to(stored).to(at::kDouble);
  };
  Problem p = {.shape = s,
               .q = draw({s.batch, s.seq_len, s.heads, s.dim}, 0),
               .k = draw({s.batch, s.seq_len, s.heads, s.dim}, 1),
               .v = draw({s.batch, s.seq_len, s.heads, s.dim_v}, 2),
               .dout = draw({s.batch, s.seq_len, s.heads, s.dim_v}, 3),
               .initial = {},
               .dfinal = {}};
  if (!s.states) return p;
  // The state after eight tokens, whose sums of similarities are positive.
  Problem before = MakeProblem({.batch = s.batch,
                                .seq_len = 8,
                                .heads = s.heads,
                                .dim = s.dim,
                                .dim_v = s.dim_v,
                                .kernel = s.kernel},
                               seed + 10, stored);
  ops::PolynomialAttentionConfig config = before.Config();
  config.want_final_state = true;
  config.form = PolynomialForm::kChunked;
  const ops::PolynomialState left =
      ops::PolynomialAttention({.q = before.q, .k = before.k, .v = before.v}, config).final_state;
  const auto rounded = [](const at::Tensor& x) { return x.to(at::kFloat).to(at::kDouble); };
  p.initial.kv = rounded(left.kv);
  p.dfinal.kv = rounded(Normal(left.kv.sizes().vec(), seed + 4));
  if (!s.kernel.normalise) return p;
  p.initial.norm = rounded(left.norm);
  p.dfinal.norm = rounded(Normal(left.norm.sizes().vec(), seed + 5));
  return p;
}

// By name: "out", "dq", ...
using Answer = std::map<std::string, at::Tensor>;

inline Answer Oracle(const Problem& p) {
  const ProblemShape& s = p.shape;
  PolynomialReferenceProblem reference = {.batch = s.batch,
                                          .seq_len = s.seq_len,
                                          .num_heads = s.heads,
                                          .head_dim = s.dim,
                                          .head_dim_v = s.dim_v,
                                          .scale = p.scale(),
                                          .weights = s.kernel.weights,
                                          .normalise = s.kernel.normalise,
                                          .norm_eps = s.norm_eps,
                                          .q = ToValues(p.q),
                                          .k = ToValues(p.k),
                                          .v = ToValues(p.v),
                                          .starts = {},
                                          .initial_state = ToValues(p.initial.kv),
                                          .initial_norm = ToValues(p.initial.norm),
                                          .dout = ToValues(p.dout),
                                          .dfinal_state = ToValues(p.dfinal.kv),
                                          .dfinal_norm = ToValues(p.dfinal.norm)};
  reference.starts.assign(s.batch * s.seq_len, 0);
  for (const int32_t start : s.document_starts) reference.starts[start] = 1;
  const PolynomialReferenceResult r = PolynomialReference(reference);
  const int64_t features = FeatureLayout(static_cast<int>(s.dim), s.kernel.weights).count;
  Answer answer = {{"out", ToTensor(r.out, p.v.sizes())},
                   {"dq", ToTensor(r.dq, p.q.sizes())},
                   {"dk", ToTensor(r.dk, p.k.sizes())},
                   {"dv", ToTensor(r.dv, p.v.sizes())}};
  if (!s.states) return answer;
  const std::vector<int64_t> state = {s.batch, s.heads, features, s.dim_v},
                             norm = {s.batch, s.heads, features};
  answer["final_state"] = ToTensor(r.final_state, state);
  answer["dinitial_state"] = ToTensor(r.dinitial_state, state);
  if (!s.kernel.normalise) return answer;
  answer["final_norm"] = ToTensor(r.final_norm, norm);
  answer["dinitial_norm"] = ToTensor(r.dinitial_norm, norm);
  return answer;
}

struct RunConfig {
  at::ScalarType dtype = at::kFloat;
  int64_t chunk_size = 32;
  PolynomialForm form = PolynomialForm::kChunked;
  at::Device device = at::kCPU;
  ops::PolynomialAttentionOutput (*attend)(const ops::PolynomialAttentionInputs&,
                                           const ops::PolynomialAttentionConfig&) =
      ops::PolynomialAttention;
};

inline std::shared_ptr<const ops::SequenceChunks> ChunksOf(const ProblemShape& s,
                                                           int64_t chunk_size,
                                                           at::Device device = at::kCPU) {
  return ops::MakeSequenceChunks({.batch = s.batch,
                                  .seq_len = s.seq_len,
                                  .chunk_size = chunk_size,
                                  .document_starts = s.document_starts},
                                 device);
}

// Returns the results on the CPU for any device.
inline Answer RunKernel(const Problem& p, const RunConfig& run) {
  const at::ScalarType wide = run.dtype == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> leaves;
  const auto leaf = [&](const at::Tensor& x, at::ScalarType dtype) {
    if (!x.defined()) return x;
    leaves.push_back(x.to(dtype).to(run.device).clone().requires_grad_());
    return leaves.back();
  };
  ops::PolynomialAttentionInputs inputs = {.q = leaf(p.q, run.dtype),
                                           .k = leaf(p.k, run.dtype),
                                           .v = leaf(p.v, run.dtype),
                                           .chunks = ChunksOf(p.shape, run.chunk_size, run.device)};
  inputs.initial_state = {.kv = leaf(p.initial.kv, wide), .norm = leaf(p.initial.norm, wide)};
  ops::PolynomialAttentionConfig config = p.Config();
  config.form = run.form;
  const auto [out, final_state, divisors] = run.attend(inputs, config);
  std::vector<at::Tensor> results = {out}, gradients = {p.dout.to(run.dtype).to(run.device)};
  Answer answer = {{"out", out.detach()}};
  if (p.shape.states) {
    results.push_back(final_state.kv);
    gradients.push_back(p.dfinal.kv.to(wide).to(run.device));
    answer["final_state"] = final_state.kv.detach();
    if (final_state.norm.defined()) {
      results.push_back(final_state.norm);
      gradients.push_back(p.dfinal.norm.to(wide).to(run.device));
      answer["final_norm"] = final_state.norm.detach();
    }
  }
  const char* const names[] = {"dq", "dk", "dv", "dinitial_state", "dinitial_norm"};
  const auto grads = torch::autograd::grad(results, leaves, gradients);
  for (size_t i = 0; i < grads.size(); ++i) answer[names[i]] = grads[i];
  for (auto& [name, tensor] : answer) tensor = tensor.cpu();
  return answer;
}

// Returns the root-mean-square error relative to that of `want`, or to `least` if it is larger. NaN
// fails.
inline double RelativeError(const at::Tensor& got, const at::Tensor& want, double least = 1e-3) {
  const at::Tensor difference = got.to(at::kDouble) - want;
  const double error = difference.square().mean().item<double>(),
               size = want.square().mean().item<double>();
  return std::sqrt(error) / std::max(std::sqrt(size), least);
}
// Compares each tensor. A normalised dq or dk is a difference of terms of size 1, which cancel
// completely if a token sees only itself. So the error is compared with at least a third of that
// size.
inline void ExpectClose(const Answer& got, const Answer& want, double tolerance) {
  for (const auto& [name, tensor] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    ASSERT_EQ(got.at(name).sizes(), tensor.sizes()) << name;
    const double least = name == "dq" || name == "dk" ? 0.3 : 1e-3;
    EXPECT_LE(RelativeError(got.at(name), tensor, least), tolerance) << name;
  }
}

// Returns the magnitude of the terms of each token's dq and dk, [B, T, H] each: the root of the sum
// of squares of scale w'(s) / z (|dO . v| + |dO . out|) times |k| or |q|, for rows without a state.
// A normalised gradient is the remainder after these terms cancel. They grow without bound as
// similarities vanish, as s^2 does if q and its first keys are almost orthogonal.
inline Answer GradientTerms(const Problem& p, const at::Tensor& out) {
  const auto heads = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const auto lengths = [&](const at::Tensor& x) { return heads(x).square().sum(3, true); };
  const auto& [a0, a1, a2] = p.shape.kernel.weights;
  at::Tensor starts = at::zeros({p.shape.batch * p.shape.seq_len}, at::kDouble);
  for (const int32_t start : p.shape.document_starts) starts[start] = 1;
  const at::Tensor document = starts.view({p.shape.batch, 1, -1, 1}).cumsum(2);
  const at::Tensor seen = document.eq(document.transpose(2, 3)).to(at::kDouble).tril();
  const at::Tensor s = heads(p.q).matmul(heads(p.k).transpose(2, 3)) * p.scale();
  at::Tensor slopes = (2 * a2 * s + a1).abs() * seen,
             dweights = heads(p.dout).matmul(heads(p.v).transpose(2, 3)).abs();
  if (p.shape.kernel.normalise) {
    slopes = slopes / (((a2 * s + a1) * s + a0) * seen).sum(3, true);
    dweights = dweights + heads(p.dout * out).sum(3, true).abs();
  }
  const at::Tensor squares = (p.scale() * slopes * dweights).square();
  const auto terms = [&](const at::Tensor& of, const at::Tensor& x) {
    return heads(of.matmul(lengths(x)).sqrt()).squeeze(3);
  };
  return {{"dq", terms(squares, p.k)}, {"dk", terms(squares.transpose(2, 3), p.q)}};
}
// Returns the root mean square over tokens of a gradient's error relative to the magnitude of its
// terms. NaN fails.
inline double ErrorOfTerms(const at::Tensor& got, const at::Tensor& want, const at::Tensor& terms) {
  const at::Tensor errors = (got.to(at::kDouble) - want).square().sum(3);
  return std::sqrt((errors / terms.square()).mean().item<double>());
}

inline void PrintTo(const Kernel& kernel, std::ostream* out) { *out << kernel.name; }

}  // namespace halflife::kernels::test
