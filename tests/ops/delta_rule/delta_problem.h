// Random problems of the delta rule, and the answer of the recurrence token by token, whose
// gradients come from autograd.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/delta_rule/delta_rule.h"
#include "ops/random_tensors.h"

namespace halflife::test {

enum class DeltaGate { kNone, kPerHead, kPerChannel };

struct DeltaShape {
  int64_t batch = 2, seq_len = 65, heads = 2, value_heads = 2, dim_k = 6, dim_v = 5;
  DeltaGate gate = DeltaGate::kPerHead;
  bool resets = false;     // log decays of -inf at random tokens (and channels)
  double max_beta = 1;     // beta is uniform in [0, max_beta)
  bool documents = false;  // of random lengths
};

struct DeltaProblem {
  ops::DeltaRuleInputs inputs;
  double scale = 1;
  at::Tensor starts;  // [B, T] bool; undefined: no document starts
  at::Tensor dout, dfinal_state;
};

inline at::Tensor NormalisedKeys(const at::Tensor& x) {
  return x / ((x * x).sum(-1, true) + 1e-6).sqrt();
}

// Returns the chunks of a batch whose documents start where `starts` [B, T] is true.
inline std::shared_ptr<const ops::SequenceChunks> DeltaChunks(const at::Tensor& starts) {
  const at::Tensor flat = starts.contiguous();
  std::vector<int32_t> document_starts;
  for (int32_t i = 0; i < flat.numel(); ++i)
    if (flat.const_data_ptr<bool>()[i]) document_starts.push_back(i);
  return ops::MakeSequenceChunks(
      {.batch = starts.size(0), .seq_len = starts.size(1), .document_starts = document_starts},
      at::kCPU);
}
inline void SetStarts(DeltaProblem& problem, const at::Tensor& starts) {
  problem.starts = starts;
  problem.inputs.chunks = DeltaChunks(starts);
}

inline DeltaProblem MakeDeltaProblem(const DeltaShape& shape, uint64_t seed,
                                     at::ScalarType dtype = at::kDouble) {
  const int64_t B = shape.batch, T = shape.seq_len, H = shape.heads, HV = shape.value_heads,
                K = shape.dim_k, V = shape.dim_v;
  DeltaProblem problem;
  problem.scale = 1 / std::sqrt(static_cast<double>(K));
  ops::DeltaRuleInputs& in = problem.inputs;
  in.q = NormalisedKeys(Normal({B, T, H, K}, seed)).to(dtype);
  in.k = NormalisedKeys(Normal({B, T, H, K}, seed + 1)).to(dtype);
  in.v = Normal({B, T, HV, V}, seed + 2, dtype);
  in.beta = (Uniform({B, T, HV}, seed + 3) * shape.max_beta).to(dtype);
  if (shape.gate != DeltaGate::kNone) {
    std::vector<int64_t> sizes = {B, T, HV};
    if (shape.gate == DeltaGate::kPerChannel) sizes.push_back(K);
    in.log_decay = (Uniform(sizes, seed + 4) * -0.7).to(dtype);
    if (shape.resets)
      in.log_decay = in.log_decay.masked_fill(Uniform(sizes, seed + 5) < 0.05,
                                              -std::numeric_limits<double>::infinity());
  }
  in.initial_state = Normal({B, HV, K, V}, seed + 6, dtype);
  if (shape.documents) SetStarts(problem, Uniform({B, T}, seed + 7) < 0.08);
  problem.dout = Normal({B, T, HV, V}, seed + 8, dtype);
  problem.dfinal_state = Normal({B, HV, K, V}, seed + 9, dtype);
  return problem;
}

// Computes the recurrence in the dtype of the inputs.
inline ops::DeltaRuleOutput DeltaRecurrence(const ops::DeltaRuleInputs& in,
                                            const at::Tensor& starts, double scale) {
  const int64_t seq_len = in.v.size(1), value_heads = in.v.size(2);
  at::Tensor state =
      in.initial_state.defined()
          ? in.initial_state
          : at::zeros({in.v.size(0), value_heads, in.q.size(3), in.v.size(3)}, in.v.options());
  std::vector<at::Tensor> outs;
  for (int64_t t = 0; t < seq_len; ++t) {
    const auto row = [&](const at::Tensor& x) {  // [B, HV, 1, W]
      return x.select(1, t).repeat_interleave(value_heads / x.size(2), 1).unsqueeze(2);
    };
    if (starts.defined()) state = state.masked_fill(starts.select(1, t).view({-1, 1, 1, 1}), 0);
    if (in.log_decay.defined()) {
      const at::Tensor decay = in.log_decay.select(1, t).exp();
      state = state * (decay.dim() == 2 ? decay.unsqueeze(2) : decay).unsqueeze(3);
    }
    const at::Tensor k = row(in.k), beta = in.beta.select(1, t).unsqueeze(2).unsqueeze(3);
    state = state + k.transpose(2, 3) * (beta * (row(in.v) - at::matmul(k, state)));
    outs.push_back(scale * at::matmul(row(in.q), state).squeeze(2));
  }
  return {.out = outs.empty() ? at::zeros_like(in.v) : at::stack(outs, 1), .final_state = state};
}

// Results and gradients. Undefined: the problem has no such input.
struct DeltaAnswer {
  at::Tensor out, final_state;
  at::Tensor dq, dk, dv, dlog_decay, dbeta, dinitial_state;
};

// Runs `rule` and differentiates sum(out * dout) + sum(final_state * dfinal_state).
inline DeltaAnswer AnswerOf(
    const DeltaProblem& problem,
    const std::function<ops::DeltaRuleOutput(const ops::DeltaRuleInputs&)>& rule) {
  ops::DeltaRuleInputs in = problem.inputs;
  std::vector<at::Tensor> leaves;
  std::vector<at::Tensor DeltaAnswer::*> places;
  const auto leaf = [&](at::Tensor& x, at::Tensor DeltaAnswer::*place) {
    if (!x.defined()) return;
    x = x.detach().clone().requires_grad_();
    leaves.push_back(x);
    places.push_back(place);
  };
  leaf(in.q, &DeltaAnswer::dq), leaf(in.k, &DeltaAnswer::dk), leaf(in.v, &DeltaAnswer::dv);
  leaf(in.log_decay, &DeltaAnswer::dlog_decay), leaf(in.beta, &DeltaAnswer::dbeta);
  leaf(in.initial_state, &DeltaAnswer::dinitial_state);
  const auto [out, final_state] = rule(in);
  DeltaAnswer answer;
  answer.out = out.detach();
  std::vector<at::Tensor> outputs = {out}, grads = {problem.dout};
  if (final_state.defined()) {
    answer.final_state = final_state.detach();
    outputs.push_back(final_state), grads.push_back(problem.dfinal_state);
  }
  const auto found = torch::autograd::grad(outputs, leaves, grads, /*retain_graph=*/false,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i)
    answer.*places[i] = found[i].defined() ? found[i] : at::zeros_like(leaves[i]);
  return answer;
}

// Returns the answer of the implementation that the operation selects on the CPU.
inline DeltaAnswer DeltaRuleAnswer(const DeltaProblem& problem) {
  return AnswerOf(
      problem, [&](const ops::DeltaRuleInputs& in) { return ops::DeltaRule(in, problem.scale); });
}
inline DeltaAnswer RecurrenceAnswer(const DeltaProblem& problem) {
  return AnswerOf(problem, [&](const ops::DeltaRuleInputs& in) {
    return DeltaRecurrence(in, problem.starts, problem.scale);
  });
}

struct DeltaTolerances {
  double outputs = 1e-12, gradients = 1e-10;
  double dlog_decay = gradients;
};
inline void ExpectSameAnswer(const DeltaAnswer& got, const DeltaAnswer& want,
                             const DeltaTolerances& tolerances = {}) {
  const auto check = [&](const char* name, at::Tensor DeltaAnswer::*field, double tolerance) {
    if (!(want.*field).defined()) return;
    EXPECT_TRUE(Close(got.*field, want.*field, tolerance)) << name;
  };
  check("out", &DeltaAnswer::out, tolerances.outputs);
  check("final_state", &DeltaAnswer::final_state, tolerances.outputs);
  check("dq", &DeltaAnswer::dq, tolerances.gradients);
  check("dk", &DeltaAnswer::dk, tolerances.gradients);
  check("dv", &DeltaAnswer::dv, tolerances.gradients);
  check("dlog_decay", &DeltaAnswer::dlog_decay, tolerances.dlog_decay);
  check("dbeta", &DeltaAnswer::dbeta, tolerances.gradients);
  check("dinitial_state", &DeltaAnswer::dinitial_state, tolerances.gradients);
}

inline std::string ToString(DeltaGate gate) {
  constexpr const char* kNames[] = {"NoGate", "PerHead", "PerChannel"};
  return kNames[static_cast<int>(gate)];
}

}  // namespace halflife::test
