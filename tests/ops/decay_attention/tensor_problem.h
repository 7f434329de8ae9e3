// A random problem of decay attention, and the oracle's result as tensors.
#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

#include "kernels/decay_attention/decay_attention_reference.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/random_tensors.h"

namespace halflife::test {

using kernels::DecayKind;
enum class DecayStrength {
  kMild,     // Like a trained gate: alpha between 0.5 and 1.
  kNearOne,  // alpha = 1 - 1e-6
  kStrong,   // alpha = 1e-3
  kResets,   // kMild, with 0 at random tokens and channels.
};

struct ProblemShape {
  int64_t batch = 2, seq_len = 65, heads = 2, dim_k = 24, dim_v = 40;
  DecayKind kind = DecayKind::kPerTokenChannel;
  DecayStrength strength = DecayStrength::kMild;
  bool documents = false;
  bool initial_state = true;
  bool normalised = false;  // q and k are positive, as a normalizer requires.
  bool key_scale = false;
};

struct DecayProblem {
  ops::DecayAttentionInputs inputs;
  ops::DecayAttentionConfig config;
  at::Tensor starts;  // [B, T] bool. Undefined: no document starts.
  at::Tensor dout;
  ops::DecayState dfinal_state;
};

inline at::Tensor RandomLogDecay(std::vector<int64_t> shape, DecayStrength strength,
                                 uint64_t seed) {
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  switch (strength) {
    case DecayStrength::kNearOne:
      return at::full(shape, std::log1p(-1e-6), at::kDouble);
    case DecayStrength::kStrong:
      return at::full(shape, std::log(1e-3), at::kDouble);
    case DecayStrength::kMild:
      return Uniform(shape, seed) * -0.7;
    case DecayStrength::kResets:
      return at::where(Uniform(shape, seed + 1) < 0.05, at::full({}, minus_infinity, at::kDouble),
                       Uniform(shape, seed) * -0.7);
  }
  return {};
}

// Returns the chunks of a batch whose documents start where `starts` [B, T] is true. A chunk size
// of 0 means the device's best size.
inline std::shared_ptr<const ops::SequenceChunks> ChunksOf(const at::Tensor& starts,
                                                           int64_t chunk_size = 0,
                                                           at::Device device = at::kCPU) {
  const at::Tensor flat = starts.contiguous();
  std::vector<int32_t> document_starts;
  for (int32_t i = 0; i < flat.numel(); ++i)
    if (flat.const_data_ptr<bool>()[i]) document_starts.push_back(i);
  return ops::MakeSequenceChunks({.batch = starts.size(0),
                                  .seq_len = starts.size(1),
                                  .chunk_size = chunk_size,
                                  .document_starts = document_starts},
                                 device);
}

inline DecayProblem MakeProblem(const ProblemShape& shape, uint64_t seed, at::ScalarType dtype) {
  const int64_t B = shape.batch, T = shape.seq_len, H = shape.heads, K = shape.dim_k,
                V = shape.dim_v;
  DecayProblem problem;
  problem.config.scale = 1 / std::sqrt(static_cast<double>(K));
  problem.inputs.q = Normal({B, T, H, K}, seed, dtype);
  problem.inputs.k = Normal({B, T, H, K}, seed + 1, dtype);
  problem.inputs.v = Normal({B, T, H, V}, seed + 2, dtype);
  if (shape.normalised) {
    problem.config.norm = kernels::NormKind::kSumOfKeys;
    problem.inputs.q = problem.inputs.q.abs() + 0.125;
    problem.inputs.k = problem.inputs.k.abs() + 0.125;
  }
  if (shape.key_scale) problem.inputs.key_scale = Uniform({B, T, H}, seed + 9).to(dtype) + 0.25;
  std::vector<int64_t> decay_shape = {H};
  if (shape.kind == DecayKind::kPerHeadChannel) decay_shape = {H, K};
  if (shape.kind == DecayKind::kPerToken) decay_shape = {B, T, H};
  if (shape.kind == DecayKind::kPerTokenChannel) decay_shape = {B, T, H, K};
  if (shape.kind != DecayKind::kNone)
    problem.inputs.log_decay = RandomLogDecay(decay_shape, shape.strength, seed + 3).to(dtype);
  if (shape.initial_state) {
    problem.inputs.initial_state.kv = Normal({B, H, K, V}, seed + 5, dtype);
    if (shape.normalised)
      problem.inputs.initial_state.norm = Uniform({B, H, K}, seed + 10).to(dtype) + 0.5;
  }
  if (shape.documents) {  // Documents of random lengths.
    problem.starts = Uniform({B, T}, seed + 6) < 0.1;
    problem.inputs.chunks = ChunksOf(problem.starts);
  }
  problem.dout = Normal({B, T, H, V}, seed + 7, dtype);
  problem.dfinal_state.kv = Normal({B, H, K, V}, seed + 8, dtype);
  if (shape.normalised) problem.dfinal_state.norm = Normal({B, H, K}, seed + 11, dtype);
  return problem;
}

// Returns one token of inputs, for a step.
inline ops::DecayAttentionStepInputs TokenAt(const ops::DecayAttentionInputs& in, int64_t t) {
  const auto token = [t](const at::Tensor& x) { return x.defined() ? x.select(1, t) : x; };
  const bool constant = !in.log_decay.defined() || in.log_decay.dim() <= 2;
  return {.q = token(in.q),
          .k = token(in.k),
          .v = token(in.v),
          .log_decay = constant ? in.log_decay : token(in.log_decay),
          .constant_decay = constant,
          .key_scale = token(in.key_scale),
          .log_key_scale = token(in.log_key_scale),
          .norm_q = token(in.norm_q),
          .norm_k = token(in.norm_k)};
}

struct OracleAnswer {
  ops::DecayAttentionOutput output;
  ops::DecayAttentionGrads grads;  // In the shapes of the problem's tensors.
};

inline OracleAnswer Oracle(const DecayProblem& problem) {
  const auto& in = problem.inputs;
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2), K = in.q.size(3),
                V = in.v.size(3);
  const bool normalised = problem.config.norm == kernels::NormKind::kSumOfKeys;
  at::Tensor log_decay = in.log_decay.defined() ? in.log_decay : at::zeros({H}, at::kDouble);
  if (log_decay.dim() == 1) log_decay = log_decay.view({1, 1, H, 1});
  if (log_decay.dim() == 2) log_decay = log_decay.view({1, 1, H, K});
  if (log_decay.dim() == 3) log_decay = log_decay.unsqueeze(3);
  const auto given = [](const at::Tensor& x) {
    return x.defined() ? ToValues(x) : std::vector<double>();
  };
  kernels::DecayReferenceProblem reference = {.batch = B,
                                              .seq_len = T,
                                              .num_heads = H,
                                              .head_dim_k = K,
                                              .head_dim_v = V,
                                              .scale = problem.config.scale,
                                              .q = ToValues(in.q),
                                              .k = ToValues(in.k),
                                              .v = ToValues(in.v),
                                              .log_decay = ToValues(log_decay.expand({B, T, H, K})),
                                              .key_scale = given(in.key_scale),
                                              .starts = {},
                                              .initial_state = given(in.initial_state.kv),
                                              .dout = ToValues(problem.dout),
                                              .dfinal_state = given(problem.dfinal_state.kv),
                                              .normalised = normalised,
                                              .norm_eps = problem.config.norm_eps,
                                              .initial_norm = given(in.initial_state.norm),
                                              .dfinal_norm = given(problem.dfinal_state.norm)};
  if (problem.starts.defined()) {
    const std::vector<double> starts = ToValues(problem.starts);
    reference.starts.assign(starts.begin(), starts.end());
  }
  const kernels::DecayReferenceResult result = kernels::DecayReference(reference);
  const auto state = [&](const std::vector<double>& kv, const std::vector<double>& norm) {
    return ops::DecayState{.kv = ToTensor(kv, {B, H, K, V}),
                           .norm = normalised ? ToTensor(norm, {B, H, K}) : at::Tensor()};
  };
  OracleAnswer answer;
  answer.output = {.out = ToTensor(result.out, {B, T, H, V}),
                   .final_state = state(result.final_state, result.final_norm)};
  answer.grads = {.dq = ToTensor(result.dq, {B, T, H, K}),
                  .dk = ToTensor(result.dk, {B, T, H, K}),
                  .dv = ToTensor(result.dv, {B, T, H, V}),
                  .dlog_decay = {},
                  .dinitial_state = state(result.dinitial_state, result.dinitial_norm)};
  if (in.key_scale.defined()) answer.grads.dkey_scale = ToTensor(result.dkey_scale, {B, T, H});
  if (!in.log_decay.defined()) return answer;
  const at::Tensor dlog_decay = ToTensor(result.dlog_decay, {B, T, H, K});
  if (in.log_decay.dim() == 1) answer.grads.dlog_decay = dlog_decay.sum({0, 1, 3});
  if (in.log_decay.dim() == 2) answer.grads.dlog_decay = dlog_decay.sum(at::IntArrayRef({0, 1}));
  if (in.log_decay.dim() == 3) answer.grads.dlog_decay = dlog_decay.sum(3);
  if (in.log_decay.dim() == 4) answer.grads.dlog_decay = dlog_decay;
  return answer;
}

inline void ExpectSameState(const ops::DecayState& got, const ops::DecayState& want,
                            double tolerance, const char* name) {
  EXPECT_TRUE(Close(got.kv, want.kv, tolerance)) << name << ".kv";
  EXPECT_EQ(got.norm.defined(), want.norm.defined()) << name << ".norm";
  if (!want.norm.defined()) return;
  EXPECT_TRUE(Close(got.norm, want.norm, tolerance)) << name << ".norm";
}
inline void ExpectSameOutput(const ops::DecayAttentionOutput& got,
                             const ops::DecayAttentionOutput& want, double tolerance) {
  EXPECT_TRUE(Close(got.out, want.out, tolerance)) << "out";
  ExpectSameState(got.final_state, want.final_state, tolerance, "final_state");
}
inline void ExpectSameGrads(const ops::DecayAttentionGrads& got,
                            const ops::DecayAttentionGrads& want, double tolerance) {
  EXPECT_TRUE(Close(got.dq, want.dq, tolerance)) << "dq";
  EXPECT_TRUE(Close(got.dk, want.dk, tolerance)) << "dk";
  EXPECT_TRUE(Close(got.dv, want.dv, tolerance)) << "dv";
  ExpectSameState(got.dinitial_state, want.dinitial_state, tolerance, "dinitial_state");
  EXPECT_EQ(got.dkey_scale.defined(), want.dkey_scale.defined());
  if (want.dkey_scale.defined()) {
    EXPECT_TRUE(Close(got.dkey_scale, want.dkey_scale, tolerance)) << "dkey_scale";
  }
  EXPECT_EQ(got.dlog_decay.defined(), want.dlog_decay.defined());
  if (want.dlog_decay.defined()) {
    // The gradient of a constant decay is one sum over all tokens and channels, whose terms mostly
    // cancel.
    const double factor = want.dlog_decay.dim() <= 2 ? 10 : 1;
    EXPECT_TRUE(Close(got.dlog_decay, want.dlog_decay, factor * tolerance)) << "dlog_decay";
  }
}

}  // namespace halflife::test
