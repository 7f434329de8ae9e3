// The CUDA kernels give the results of the CPU kernels on the same tensors: every kind of decay,
// forward, all gradients, and the decoding step. Skipped without a GPU.

#include <string>
#include <tuple>

#include "ops/decay_attention/tensor_problem.h"
#include "ops/gpu_test.h"

namespace halflife::kernels {
namespace {

using test::DecayProblem;
using test::MakeProblem;

// Bound on the norm of the difference, relative to the norm of the expected tensor.
//
// bf16: a rounding changes a value by at most 2^-9, and by 2^-9 / sqrt(3) = 1.1e-3 in the root mean
// square. Tensor-core operands are rounded up to three times in forward and five times in backward,
// and results once on each side. All roundings are independent: sqrt(7) x 1.1e-3 = 3e-3. The
// emulated kernels are compared with the oracle within 4e-3 to 6e-3 (cuda/expect.h). The rest is
// for LibTorch's rounding of the CPU's results. fp32: 8e-6 for products of two bf16 terms
// (cuda/expect.h), and sums of a few hundred terms in another order.
double Tolerance(at::ScalarType dtype) { return dtype == at::kBFloat16 ? 8e-3 : 1e-5; }
// A gradient through a normalizer is the difference of two values with separate roundings
// (NormaliserFactor in cuda/expect.h).
constexpr double kNormaliserFactor = 2.5;
// The gradient of a decay per head is a sum over all tokens and channels whose terms mostly cancel.
constexpr double kConstantDecayFactor = 10;
// The gradient of a decay per token subtracts results, each with the errors of its fp32 products
// (cuda/expect.h).
constexpr double kFp32DecayFactor = 2;

// NaN fails.
void ExpectSame(const std::string& name, const at::Tensor& got_in, const at::Tensor& want_in,
                double tolerance) {
  ASSERT_EQ(got_in.defined(), want_in.defined()) << name;
  if (!want_in.defined()) return;
  const at::Tensor got = got_in.detach().to(at::kCPU, at::kDouble),
                   want = want_in.detach().to(at::kCPU, at::kDouble);
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  EXPECT_LE(got.sub(want).norm().item<double>(), tolerance * want.norm().item<double>()) << name;
}
void ExpectSame(const std::string& name, const ops::DecayState& got, const ops::DecayState& want,
                double tolerance) {
  ExpectSame(name + ".kv", got.kv, want.kv, tolerance);
  ExpectSame(name + ".norm", got.norm, want.norm, tolerance);
}
void ExpectSame(const ops::DecayAttentionGrads& got, const ops::DecayAttentionGrads& want,
                double tolerance) {
  ExpectSame("dq", got.dq, want.dq, tolerance);
  ExpectSame("dk", got.dk, want.dk, tolerance);
  ExpectSame("dv", got.dv, want.dv, tolerance);
  ExpectSame("dkey_scale", got.dkey_scale, want.dkey_scale, tolerance);
  ExpectSame("dinitial_state", got.dinitial_state, want.dinitial_state, tolerance);
  const bool constant = want.dlog_decay.defined() && want.dlog_decay.dim() <= 2;
  const double factor = constant                              ? kConstantDecayFactor
                        : want.dq.scalar_type() == at::kFloat ? kFp32DecayFactor
                                                              : 1;
  ExpectSame("dlog_decay", got.dlog_decay, want.dlog_decay, tolerance * factor);
}

at::Tensor ToGpu(const at::Tensor& x) { return x.defined() ? x.to(at::kCUDA) : x; }

DecayProblem OnGpu(const DecayProblem& problem) {
  DecayProblem moved = problem;
  ops::DecayAttentionInputs& in = moved.inputs;
  for (at::Tensor* x :
       {&in.q, &in.k, &in.v, &in.log_decay, &in.key_scale, &in.initial_state.kv,
        &in.initial_state.norm, &moved.dout, &moved.dfinal_state.kv, &moved.dfinal_state.norm})
    *x = ToGpu(*x);
  in.chunks = problem.starts.defined() ? test::ChunksOf(problem.starts, 64, at::kCUDA) : nullptr;
  return moved;
}

class DecayAttentionGpuTest
    : public test::GpuTest<testing::TestWithParam<std::tuple<DecayKind, at::ScalarType, bool>>> {
 protected:
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
  // Runs the CPU with the problem's own config.
  static void ExpectEqualsTheCpu(const DecayProblem& problem,
                                 const ops::DecayAttentionConfig& on_gpu) {
    const double tolerance = Tolerance(std::get<1>(GetParam())) *
                             (problem.config.norm != NormKind::kNone ? kNormaliserFactor : 1);
    const DecayProblem moved = OnGpu(problem);
    const auto got = ops::DecayAttention(moved.inputs, on_gpu),
               want = ops::DecayAttention(problem.inputs, problem.config);
    ExpectSame("out", got.out, want.out, tolerance);
    ExpectSame("final_state", got.final_state, want.final_state, tolerance);
    ExpectSame(ops::Backward(moved.inputs, on_gpu, moved.dout, moved.dfinal_state),
               ops::Backward(problem.inputs, problem.config, problem.dout, problem.dfinal_state),
               tolerance);
  }
};

TEST_P(DecayAttentionGpuTest, EqualsTheCpu) {
  for (const auto& [dim_k, dim_v] :
       {std::pair<int64_t, int64_t>{64, 64}, {40, 72}, {128, 128}, {128, 256}}) {
    SCOPED_TRACE(testing::Message() << "K " << dim_k << ", V " << dim_v);
    const DecayProblem problem = Make(dim_k, dim_v);
    for (const int segments : {1, 2}) {
      ops::DecayAttentionConfig config = problem.config;
      config.num_segments = segments;
      ExpectEqualsTheCpu(problem, config);
    }
  }
}

// Every stage of a kernel's ring of tiles is used many times, and the last chunk of each document
// and of the row is short.
TEST_P(DecayAttentionGpuTest, LongRowsEqualTheCpu) {
  const auto [kind, dtype, documents] = GetParam();
  if (dtype != at::kBFloat16) GTEST_SKIP() << "the scans of fp32 have one stage, not a ring";
  constexpr int64_t kTokens = 4160;
  for (const auto& [dim_k, dim_v] : {std::pair<int64_t, int64_t>{128, 128}, {128, 256}}) {
    SCOPED_TRACE(testing::Message() << "K " << dim_k << ", V " << dim_v);
    DecayProblem problem = MakeProblem({.batch = 1,
                                        .seq_len = documents ? kTokens : kTokens - 10,
                                        .heads = 2,
                                        .dim_k = dim_k,
                                        .dim_v = dim_v,
                                        .kind = kind},
                                       5, at::kFloat);
    for (at::Tensor* x : {&problem.inputs.q, &problem.inputs.k, &problem.inputs.v, &problem.dout})
      *x = x->to(dtype);
    if (documents) {
      problem.starts = at::zeros({1, kTokens}, at::kBool);
      for (const int64_t start : {1000, 1024, 3000, 4159}) problem.starts.select(1, start).fill_(1);
      problem.inputs.chunks = test::ChunksOf(problem.starts);
    }
    ExpectEqualsTheCpu(problem, problem.config);
  }
}

// Batch tiles of five rows: 5, 2 and 3, and 1, 2 and 2.
TEST_P(DecayAttentionGpuTest, BatchTilesChangeNoBit) {
  const auto [kind, dtype, documents] = GetParam();
  DecayProblem problem = MakeProblem({.batch = 5,
                                      .seq_len = 700,
                                      .dim_k = 128,
                                      .dim_v = 128,
                                      .kind = kind,
                                      .documents = documents},
                                     5, at::kFloat);
  for (at::Tensor* x : {&problem.inputs.q, &problem.inputs.k, &problem.inputs.v, &problem.dout})
    *x = x->to(dtype);
  DecayProblem moved = OnGpu(problem);
  const auto run = [&](int batch_tiles) {
    moved.config.batch_tiles = batch_tiles;
    return std::pair(ops::DecayAttention(moved.inputs, moved.config).out,
                     ops::Backward(moved.inputs, moved.config, moved.dout, moved.dfinal_state));
  };
  const auto [out, grads] = run(1);
  for (const int batch_tiles : {2, 3}) {
    SCOPED_TRACE(testing::Message() << batch_tiles << " batch tiles");
    const auto [tiled_out, tiled] = run(batch_tiles);
    EXPECT_TRUE(tiled_out.equal(out));
    EXPECT_TRUE(tiled.dq.equal(grads.dq));
    EXPECT_TRUE(tiled.dk.equal(grads.dk));
    EXPECT_TRUE(tiled.dv.equal(grads.dv));
    EXPECT_TRUE(tiled.dlog_decay.equal(grads.dlog_decay));
    EXPECT_TRUE(tiled.dinitial_state.kv.equal(grads.dinitial_state.kv));
  }
}

TEST_P(DecayAttentionGpuTest, LaterTokensChangeNoBitOfALongRow) {
  const auto [kind, dtype, documents] = GetParam();
  if (documents) GTEST_SKIP() << "a document hides earlier tokens";
  constexpr int64_t kTokens = 4160, kBefore = 4100;
  DecayProblem problem = MakeProblem(
      {.batch = 1, .seq_len = kTokens, .dim_k = 128, .dim_v = 128, .kind = kind}, 5, at::kFloat);
  for (at::Tensor* x : {&problem.inputs.q, &problem.inputs.k, &problem.inputs.v}) *x = x->to(dtype);
  const DecayProblem moved = OnGpu(problem);
  const auto run = [&] {
    return ops::DecayAttention(moved.inputs, moved.config).out.narrow(1, 0, kBefore).clone();
  };
  const at::Tensor before = run();
  for (const at::Tensor& x : {moved.inputs.q, moved.inputs.k, moved.inputs.v})
    x.narrow(1, kBefore, kTokens - kBefore).add_(1);
  EXPECT_TRUE(run().equal(before));
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
    return ops::Backward(moved.inputs, moved.config, moved.dout, moved.dfinal_state);
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
  ops::DecayState state = {.kv = problem.inputs.initial_state.kv.clone()},
                  moved_state = {.kv = ToGpu(state.kv)};
  for (int64_t t = 0; t < 3; ++t) {
    const auto step = [&](const ops::DecayAttentionInputs& in, ops::DecayState& of) {
      return ops::DecayAttentionStep(test::TokenAt(in, t), problem.config, of);
    };
    const DecayProblem moved = OnGpu(problem);
    ExpectSame("out", step(moved.inputs, moved_state), step(problem.inputs, state),
               Tolerance(dtype));
  }
  ExpectSame("state", moved_state, state, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, DecayAttentionGpuTest,
                         testing::Combine(testing::Values(DecayKind::kPerHead, DecayKind::kPerToken,
                                                          DecayKind::kPerTokenChannel),
                                          testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Bool()));

}  // namespace
}  // namespace halflife::kernels
