// Keys with a logarithmic scale equal keys that are multiplied with the scale.
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "ops/decay_attention/tensor_problem.h"
#include "ops/gradient_check.h"

namespace halflife::kernels {
namespace {

using test::Close;
using test::DecayProblem;
using test::MakeProblem;
using test::Normal;
using test::Uniform;

constexpr int64_t kTokens = 90;

struct Case {
  DecayKind kind;
  bool documents, initial_state, key_scale;
};
const Case kCases[] = {{DecayKind::kNone, false, false, false},
                       {DecayKind::kPerHead, true, false, false},
                       {DecayKind::kPerHeadChannel, false, true, true},
                       {DecayKind::kPerHeadChannel, true, true, true}};

DecayProblem ProblemOf(const Case& tested) {
  DecayProblem problem = MakeProblem({.batch = 2,
                                      .seq_len = kTokens,
                                      .dim_k = 8,
                                      .dim_v = 6,
                                      .kind = tested.kind,
                                      .documents = tested.documents,
                                      .initial_state = tested.initial_state,
                                      .normalised = true,
                                      .key_scale = tested.key_scale},
                                     41, at::kDouble);
  problem.config.allow_growth = true;
  // Decays below and above 1.
  if (problem.inputs.log_decay.defined())
    problem.inputs.log_decay = problem.inputs.log_decay * 0.1 + 0.02;
  if (tested.key_scale) problem.inputs.key_scale.narrow(1, 0, 4).zero_();
  return problem;
}

at::Tensor LogScales() { return 3 * Normal({2, kTokens, 2}, 42); }

// Returns out, the state at its true scale, and all gradients.
std::vector<at::Tensor> Results(const DecayProblem& problem, const at::Tensor& log_key_scale) {
  ops::DecayAttentionInputs in = problem.inputs;
  in.log_key_scale = log_key_scale;
  std::vector<at::Tensor> leaves;
  for (at::Tensor* x :
       {&in.q, &in.k, &in.v, &in.log_decay, &in.initial_state.kv, &in.initial_state.norm}) {
    if (!x->defined()) continue;
    *x = x->detach().clone().requires_grad_();
    leaves.push_back(*x);
  }
  const auto [out, state] = ops::DecayAttention(in, problem.config);
  const at::Tensor scale = state.log_scale.exp().unsqueeze(2);
  const at::Tensor kv = state.kv * scale.unsqueeze(3), norm = state.norm * scale;
  const at::Tensor loss = (out * problem.dout).sum() + (kv * Normal(kv.sizes().vec(), 43)).sum() +
                          (norm * Normal(norm.sizes().vec(), 44)).sum();
  std::vector<at::Tensor> results = {out.detach(), kv.detach(), norm.detach()};
  for (const at::Tensor& grad : torch::autograd::grad({loss}, leaves)) results.push_back(grad);
  return results;
}

TEST(LogKeyScale, IsTheScaleItself) {
  for (const Case& tested : kCases) {
    DecayProblem plain = ProblemOf(tested);
    const at::Tensor scale = LogScales().exp();
    plain.inputs.key_scale =
        plain.inputs.key_scale.defined() ? plain.inputs.key_scale * scale : scale;
    const auto want = Results(plain, {}), got = Results(ProblemOf(tested), LogScales());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(Close(got[i], want[i], 1e-11))
          << "result " << i << ", kind " << static_cast<int>(tested.kind);
  }
}

// Log scales of +-300, far beyond the range of fp32.
TEST(LogKeyScale, AnySize) {
  DecayProblem problem = ProblemOf(kCases[3]);
  const auto run = [&](at::ScalarType dtype, double shift) {
    ops::DecayAttentionInputs in = problem.inputs;
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.key_scale}) *x = x->to(dtype);
    in.initial_state = {};
    in.log_key_scale = (LogScales() + shift).to(dtype);
    return ops::DecayAttention(in, problem.config);
  };
  const at::Tensor want = run(at::kDouble, 0).out;
  for (const double shift : {-300.0, 300.0}) {
    const auto got = run(at::kFloat, shift);
    // The scale has a rounding error of 300 * 2^-24.
    EXPECT_TRUE(Close(got.out, want, 1e-4)) << shift;
    EXPECT_TRUE(got.final_state.kv.isfinite().all().item<bool>());
  }
}

TEST(LogKeyScale, StepsAreTheWhole) {
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHeadChannel}) {
    DecayProblem problem = ProblemOf({kind, false, false, true});
    ops::DecayAttentionInputs& in = problem.inputs;
    in.log_key_scale = LogScales();
    const auto whole = ops::DecayAttention(in, problem.config);
    ops::DecayState state = {.kv = at::zeros({2, 2, 8, 6}, at::kDouble),
                             .norm = at::zeros({2, 2, 8}, at::kDouble),
                             .log_scale = at::zeros({2, 2}, at::kDouble)};
    for (int64_t t = 0; t < kTokens; ++t) {
      const at::Tensor out = ops::DecayAttentionStep(test::TokenAt(in, t), problem.config, state);
      ASSERT_TRUE(Close(out, whole.out.select(1, t), 1e-12)) << "token " << t;
    }
    EXPECT_TRUE(Close(state.kv, whole.final_state.kv, 1e-12));
    EXPECT_TRUE(Close(state.log_scale, whole.final_state.log_scale, 1e-12));
  }
}

TEST(LogKeyScale, LaterKeysChangeNoBitOfEarlierOutputs) {
  DecayProblem problem = ProblemOf(kCases[3]);
  for (at::Tensor* x : {&problem.inputs.q, &problem.inputs.k, &problem.inputs.v,
                        &problem.inputs.log_decay, &problem.inputs.key_scale})
    *x = x->to(at::kFloat);
  problem.inputs.initial_state = {};
  problem.inputs.log_key_scale = LogScales().to(at::kFloat);
  const at::Tensor before = ops::DecayAttention(problem.inputs, problem.config).out;
  problem.inputs.log_key_scale = problem.inputs.log_key_scale.clone();
  problem.inputs.log_key_scale.select(1, 50).fill_(70);
  const at::Tensor after = ops::DecayAttention(problem.inputs, problem.config).out;
  EXPECT_TRUE(test::BitEqual(after.narrow(1, 0, 50), before.narrow(1, 0, 50)));
}

// A key far above all others must raise only the scale of its own document. Otherwise the keys of
// other documents would vanish in fp32.
TEST(LogKeyScale, KeysOfAnotherDocumentChangeNoBit) {
  DecayProblem problem = ProblemOf(kCases[1]);
  ops::DecayAttentionInputs& in = problem.inputs;
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay}) *x = x->to(at::kFloat);
  in.log_key_scale = LogScales().to(at::kFloat);
  const at::Tensor others = in.chunks->runs().begin.select(0, 0) > 0;  // In row 0.
  const auto out_of_others = [&] {
    return ops::DecayAttention(in, problem.config).out.select(0, 0).index({others});
  };
  const at::Tensor before = out_of_others();
  ASSERT_GT(before.size(0), 10);
  in.log_key_scale[0][0].fill_(300);
  EXPECT_TRUE(test::BitEqual(out_of_others(), before));
}

}  // namespace
}  // namespace halflife::kernels
