// The CUDA kernels on a GPU against the CPU kernels on the same tensors: every kind, forward and
// every gradient, and the step. Skips where there is no GPU.
#include <ATen/Context.h>

#include <tuple>

#include "kernels/decay_attention/tensor_problem.h"

namespace halflife::kernels {
namespace {

using test::DecayProblem;
using test::MakeProblem;

// bf16 operands of the matrix units: 2^-9 each, three in a row; fp32: as between any two orders of
// a sum.
double Tolerance(at::ScalarType dtype) { return dtype == at::kBFloat16 ? 2e-2 : 1e-5; }

at::Tensor ToGpu(const at::Tensor& x) { return x.defined() ? x.to(at::kCUDA) : x; }
at::Tensor ToCpu(const at::Tensor& x) { return x.defined() ? x.cpu() : x; }
DecayState ToCpu(const DecayState& x) { return {.kv = ToCpu(x.kv), .norm = ToCpu(x.norm)}; }

DecayProblem OnGpu(const DecayProblem& problem) {
  DecayProblem moved = problem;
  DecayAttentionInputs& in = moved.inputs;
  for (at::Tensor* x :
       {&in.q, &in.k, &in.v, &in.log_decay, &in.key_scale, &in.initial_state.kv,
        &in.initial_state.norm, &moved.dout, &moved.dfinal_state.kv, &moved.dfinal_state.norm})
    *x = ToGpu(*x);
  in.chunks = problem.starts.defined() ? test::ChunksOf(problem.starts, 64, at::kCUDA) : nullptr;
  return moved;
}

class DecayAttentionGpuTest
    : public testing::TestWithParam<std::tuple<DecayKind, at::ScalarType, bool>> {
 protected:
  void SetUp() override {
#ifndef HALFLIFE_WITH_CUDA
    GTEST_SKIP() << "this build has no CUDA parts";
#endif
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
  static DecayProblem Make(int64_t dim_k, int64_t dim_v, bool normalised = false) {
    const auto [kind, dtype, documents] = GetParam();
    DecayProblem problem = MakeProblem({.seq_len = 300,
                                        .heads = 4,
                                        .dim_k = dim_k,
                                        .dim_v = dim_v,
                                        .kind = kind,
                                        .documents = documents,
                                        .normalised = normalised,
                                        .key_scale = normalised},
                                       5, at::kFloat);
    for (at::Tensor* x : {&problem.inputs.q, &problem.inputs.k, &problem.inputs.v, &problem.dout})
      *x = x->to(dtype);
    return problem;
  }
  // The CPU under the problem's own config.
  static void ExpectEqualsTheCpu(const DecayProblem& problem, const DecayAttentionConfig& on_gpu) {
    const double tolerance = Tolerance(std::get<1>(GetParam()));
    const DecayProblem moved = OnGpu(problem);
    const auto got = DecayAttention(moved.inputs, on_gpu);
    test::ExpectSameOutput({got.out.cpu(), ToCpu(got.final_state)},
                           DecayAttention(problem.inputs, problem.config), tolerance);
    const auto grads = Backward(moved.inputs, on_gpu, moved.dout, moved.dfinal_state);
    test::ExpectSameGrads(
        {.dq = grads.dq.cpu(),
         .dk = grads.dk.cpu(),
         .dv = grads.dv.cpu(),
         .dlog_decay = ToCpu(grads.dlog_decay),
         .dkey_scale = ToCpu(grads.dkey_scale),
         .dinitial_state = ToCpu(grads.dinitial_state)},
        Backward(problem.inputs, problem.config, problem.dout, problem.dfinal_state), tolerance);
  }
};

TEST_P(DecayAttentionGpuTest, EqualsTheCpu) {
  for (const auto& [dim_k, dim_v] : {std::pair<int64_t, int64_t>{64, 64}, {40, 72}, {128, 128}}) {
    SCOPED_TRACE(testing::Message() << "K " << dim_k << ", V " << dim_v);
    const DecayProblem problem = Make(dim_k, dim_v);
    for (const int segments : {1, 2}) {
      DecayAttentionConfig config = problem.config;
      config.num_segments = segments;
      ExpectEqualsTheCpu(problem, config);
    }
  }
}

TEST_P(DecayAttentionGpuTest, NormaliserEqualsTheCpu) {
  DecayProblem problem = Make(40, 72, true);
  ExpectEqualsTheCpu(problem, problem.config);
  if (problem.inputs.log_decay.dim() > 2) return;
  problem.config.allow_growth = true;
  problem.inputs.log_decay.add_(0.6);
  ExpectEqualsTheCpu(problem, problem.config);
}

TEST_P(DecayAttentionGpuTest, TwoRunsGiveTheSameBits) {
  const DecayProblem moved = OnGpu(Make(64, 64));
  const auto run = [&] {
    return Backward(moved.inputs, moved.config, moved.dout, moved.dfinal_state);
  };
  const auto first = run(), second = run();
  EXPECT_TRUE(first.dq.equal(second.dq));
  EXPECT_TRUE(first.dk.equal(second.dk));
  EXPECT_TRUE(first.dv.equal(second.dv));
  EXPECT_TRUE(first.dlog_decay.equal(second.dlog_decay));
}

TEST_P(DecayAttentionGpuTest, StepEqualsTheCpu) {
  const auto [kind, dtype, documents] = GetParam();
  const DecayProblem problem = Make(64, 64);
  const bool constant = kind == DecayKind::kPerHead;
  DecayState state = {.kv = problem.inputs.initial_state.kv.clone()},
             moved_state = {.kv = ToGpu(state.kv)};
  for (int64_t t = 0; t < 3; ++t) {
    const auto step = [&](const DecayAttentionInputs& in, DecayState& of) {
      return DecayAttentionStep({.q = in.q.select(1, t),
                                 .k = in.k.select(1, t),
                                 .v = in.v.select(1, t),
                                 .log_decay = constant ? in.log_decay : in.log_decay.select(1, t),
                                 .constant_decay = constant},
                                problem.config, of);
    };
    const DecayProblem moved = OnGpu(problem);
    EXPECT_TRUE(test::Close(step(moved.inputs, moved_state).cpu(), step(problem.inputs, state),
                            Tolerance(dtype)));
  }
  EXPECT_TRUE(test::Close(moved_state.kv.cpu(), state.kv, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(All, DecayAttentionGpuTest,
                         testing::Combine(testing::Values(DecayKind::kPerHead, DecayKind::kPerToken,
                                                          DecayKind::kPerTokenChannel),
                                          testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Bool()));

}  // namespace
}  // namespace halflife::kernels
