// A random decay attention problem, and the oracle's answer to it as tensors.
#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/decay_attention/decay_attention.h"
#include "kernels/decay_attention/reference.h"
#include "kernels/random_tensors.h"

namespace halflife::test {

using kernels::DecayKind;
enum class DecayStrength {
  kMild,     // like a trained gate: alpha between 0.5 and 1
  kNearOne,  // alpha = 1 - 1e-6
  kStrong,   // alpha = 1e-3
  kResets,   // mild, and 0 at random tokens and channels
};

struct ProblemShape {
  int64_t batch = 2, seq_len = 65, heads = 2, dim_k = 24, dim_v = 40;
  DecayKind kind = DecayKind::kPerTokenChannel;
  DecayStrength strength = DecayStrength::kMild;
  bool documents = false;
  bool initial_state = true;
};

struct DecayProblem {
  kernels::DecayAttentionInputs inputs;
  kernels::DecayAttentionConfig config;
  at::Tensor starts;  // [B, T] bool, or undefined: no document starts
  at::Tensor dout, dfinal_state;
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

// Chunks of a batch whose documents start where `starts` [B, T] is true.
inline std::shared_ptr<const kernels::SequenceChunks> ChunksOf(const at::Tensor& starts,
                                                               int64_t chunk_size = 64,
                                                               at::Device device = at::kCPU) {
  const at::Tensor flat = starts.contiguous();
  std::vector<int32_t> document_starts;
  for (int32_t i = 0; i < flat.numel(); ++i)
    if (flat.const_data_ptr<bool>()[i]) document_starts.push_back(i);
  return kernels::MakeSequenceChunks({.batch = starts.size(0),
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
  std::vector<int64_t> decay_shape = {H};
  if (shape.kind == DecayKind::kPerToken) decay_shape = {B, T, H};
  if (shape.kind == DecayKind::kPerTokenChannel) decay_shape = {B, T, H, K};
  problem.inputs.log_decay = RandomLogDecay(decay_shape, shape.strength, seed + 3).to(dtype);
  if (shape.initial_state) problem.inputs.initial_state = Normal({B, H, K, V}, seed + 5, dtype);
  if (shape.documents) {  // of random lengths
    problem.starts = Uniform({B, T}, seed + 6) < 0.1;
    problem.inputs.chunks = ChunksOf(problem.starts);
  }
  problem.dout = Normal({B, T, H, V}, seed + 7, dtype);
  problem.dfinal_state = Normal({B, H, K, V}, seed + 8, dtype);
  return problem;
}

inline std::vector<double> ToVector(const at::Tensor& x) {
  const at::Tensor flat = x.detach().to(at::kDouble).contiguous();
  const double* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}
inline at::Tensor ToTensor(const std::vector<double>& values, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kDouble);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<double>());
  return out;
}

struct OracleAnswer {
  kernels::DecayAttentionOutput output;
  kernels::DecayAttentionGrads grads;  // in the shapes of the problem's tensors
};

inline OracleAnswer Oracle(const DecayProblem& problem) {
  const auto& in = problem.inputs;
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2), K = in.q.size(3),
                V = in.v.size(3);
  at::Tensor log_decay = in.log_decay;
  if (log_decay.dim() == 1) log_decay = log_decay.view({1, 1, H, 1});
  if (log_decay.dim() == 3) log_decay = log_decay.unsqueeze(3);
  kernels::DecayReferenceProblem reference = {.batch = B,
                                              .seq_len = T,
                                              .num_heads = H,
                                              .head_dim_k = K,
                                              .head_dim_v = V,
                                              .scale = problem.config.scale,
                                              .q = ToVector(in.q),
                                              .k = ToVector(in.k),
                                              .v = ToVector(in.v),
                                              .log_decay = ToVector(log_decay.expand({B, T, H, K})),
                                              .starts = {},
                                              .initial_state = {},
                                              .dout = ToVector(problem.dout),
                                              .dfinal_state = ToVector(problem.dfinal_state)};
  if (in.initial_state.defined()) reference.initial_state = ToVector(in.initial_state);
  if (problem.starts.defined()) {
    const std::vector<double> starts = ToVector(problem.starts);
    reference.starts.assign(starts.begin(), starts.end());
  }
  const kernels::DecayReferenceResult result = kernels::DecayReference(reference);
  OracleAnswer answer;
  answer.output = {.out = ToTensor(result.out, {B, T, H, V}),
                   .final_state = ToTensor(result.final_state, {B, H, K, V})};
  answer.grads = {.dq = ToTensor(result.dq, {B, T, H, K}),
                  .dk = ToTensor(result.dk, {B, T, H, K}),
                  .dv = ToTensor(result.dv, {B, T, H, V}),
                  .dlog_decay = {},
                  .dinitial_state = ToTensor(result.dinitial_state, {B, H, K, V})};
  const at::Tensor dlog_decay = ToTensor(result.dlog_decay, {B, T, H, K});
  if (in.log_decay.dim() == 1) answer.grads.dlog_decay = dlog_decay.sum({0, 1, 3});
  if (in.log_decay.dim() == 3) answer.grads.dlog_decay = dlog_decay.sum(3);
  if (in.log_decay.dim() == 4) answer.grads.dlog_decay = dlog_decay;
  return answer;
}

inline void ExpectSameOutput(const kernels::DecayAttentionOutput& got,
                             const kernels::DecayAttentionOutput& want, double tolerance) {
  EXPECT_TRUE(Close(got.out, want.out, tolerance)) << "out";
  EXPECT_TRUE(Close(got.final_state, want.final_state, tolerance)) << "final_state";
}
inline void ExpectSameGrads(const kernels::DecayAttentionGrads& got,
                            const kernels::DecayAttentionGrads& want, double tolerance) {
  EXPECT_TRUE(Close(got.dq, want.dq, tolerance)) << "dq";
  EXPECT_TRUE(Close(got.dk, want.dk, tolerance)) << "dk";
  EXPECT_TRUE(Close(got.dv, want.dv, tolerance)) << "dv";
  EXPECT_TRUE(Close(got.dinitial_state, want.dinitial_state, tolerance)) << "dinitial_state";
  EXPECT_EQ(got.dlog_decay.defined(), want.dlog_decay.defined());
  if (want.dlog_decay.defined()) {
    // a constant decay's gradient is one sum over all tokens and channels, most of which cancels
    const double factor = want.dlog_decay.dim() <= 2 ? 10 : 1;
    EXPECT_TRUE(Close(got.dlog_decay, want.dlog_decay, factor * tolerance)) << "dlog_decay";
  }
}

}  // namespace halflife::test
