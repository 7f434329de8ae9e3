// The CUDA kernels of the delta rule on a GPU against the CPU kernels in fp64. Skipped without a
// GPU.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <tuple>
#include <utility>
#include <vector>

#include "ops/delta_rule/delta_problem.h"
#include "ops/delta_rule/delta_rule_internal.h"
#include "ops/gpu_test.h"

namespace halflife::ops {
namespace {

using test::DeltaGate;
using test::DeltaProblem;
using test::MakeDeltaProblem;

class DeltaRuleGpuTest
    : public test::GpuTest<testing::TestWithParam<std::tuple<DeltaGate, at::ScalarType>>> {
 protected:
  static DeltaGate gate() { return std::get<0>(GetParam()); }
  static at::ScalarType dtype() { return std::get<1>(GetParam()); }
  static double Bound() { return dtype() == at::kBFloat16 ? 8e-3 : 2e-6; }

  // Hopper's instructions scan bf16 of all sizes, and the gradients of states if V is a multiple of
  // 64. fp32 has no gradients of wider keys.
  static std::vector<std::pair<int64_t, int64_t>> Heads() {
    std::vector<std::pair<int64_t, int64_t>> heads = {{24, 32}, {64, 64}, {128, 128}, {128, 136}};
    if (dtype() == at::kBFloat16) heads.emplace_back(256, 192);
    return heads;
  }

  static at::Tensor OnGpu(const at::Tensor& x, at::ScalarType type) {
    return x.defined() ? x.to(at::kCUDA, type) : x;
  }
  // Returns the inputs in the parameter's dtype on the GPU. `in` becomes the same numbers in fp64.
  static DeltaRuleInputs Moved(DeltaRuleInputs& in) {
    for (at::Tensor* x : {&in.q, &in.k, &in.v}) *x = x->to(dtype()).to(at::kDouble);
    for (at::Tensor* x : {&in.log_decay, &in.beta, &in.initial_state})
      if (x->defined()) *x = x->to(at::kFloat).to(at::kDouble);
    return {.q = OnGpu(in.q, dtype()),
            .k = OnGpu(in.k, dtype()),
            .v = OnGpu(in.v, dtype()),
            .log_decay = OnGpu(in.log_decay, at::kFloat),
            .beta = OnGpu(in.beta, at::kFloat),
            .initial_state = OnGpu(in.initial_state, at::kFloat)};
  }
  static void ExpectNear(const at::Tensor& got, const at::Tensor& want, double bound = Bound()) {
    const at::Tensor x = got.to(at::kCPU, at::kDouble);
    const double error = ((x - want).norm() / want.norm()).item<double>();
    EXPECT_LE(error, bound);
  }
};

TEST_P(DeltaRuleGpuTest, EqualsTheCpu) {
  const at::NoGradGuard no_grad;
  uint64_t seed = 400;
  for (const int64_t seq_len : {1, 63, 64, 65, 700})
    for (const auto& [dim_k, dim_v] : Heads()) {
      SCOPED_TRACE(testing::Message()
                   << seq_len << " tokens, heads of " << dim_k << " x " << dim_v);
      DeltaProblem problem = MakeDeltaProblem({.seq_len = seq_len,
                                               .value_heads = 4,
                                               .dim_k = dim_k,
                                               .dim_v = dim_v,
                                               .gate = gate(),
                                               .max_beta = 2},
                                              seed += 10);
      const DeltaRuleInputs moved = Moved(problem.inputs);
      ASSERT_TRUE(HasDeltaRuleKernels(moved));
      const DeltaRuleOutput want = DeltaRule(problem.inputs, problem.scale);
      const DeltaRuleOutput got = DeltaRule(moved, problem.scale);
      ExpectNear(got.out, want.out);
      ExpectNear(got.final_state, want.final_state);
      EXPECT_TRUE(at::equal(got.out, DeltaRule(moved, problem.scale).out)) << "bits differ";
      const DeltaRuleSummary map = KernelDeltaRuleSummary(moved);
      const DeltaRuleSummary cpu = KernelDeltaRuleSummary(problem.inputs);
      ExpectNear(map.transition, cpu.transition);
      ExpectNear(map.state, cpu.state);
    }
}

TEST_P(DeltaRuleGpuTest, GradientsEqualTheCpu) {
  uint64_t seed = 600;
  for (const int64_t seq_len : {1, 64, 65, 700})
    for (const auto& [dim_k, dim_v] : Heads()) {
      SCOPED_TRACE(testing::Message()
                   << seq_len << " tokens, heads of " << dim_k << " x " << dim_v);
      DeltaProblem problem = MakeDeltaProblem({.seq_len = seq_len,
                                               .value_heads = 4,
                                               .dim_k = dim_k,
                                               .dim_v = dim_v,
                                               .gate = gate(),
                                               .max_beta = 2},
                                              seed += 10);
      problem.dout = problem.dout.to(dtype()).to(at::kDouble);
      DeltaProblem moved = problem;
      moved.inputs = Moved(problem.inputs);
      moved.dout = OnGpu(problem.dout, dtype());
      moved.dfinal_state = OnGpu(problem.dfinal_state, at::kFloat);
      const test::DeltaAnswer want = test::DeltaRuleAnswer(problem);
      const test::DeltaAnswer got = test::DeltaRuleAnswer(moved);
      const double bound = dtype() == at::kBFloat16 ? 1.5e-2 : 5e-6;
      ExpectNear(got.dq, want.dq, bound);
      ExpectNear(got.dk, want.dk, bound);
      ExpectNear(got.dv, want.dv, bound);
      ExpectNear(got.dbeta, want.dbeta, bound);
      ExpectNear(got.dinitial_state, want.dinitial_state, bound);
      if (want.dlog_decay.defined()) ExpectNear(got.dlog_decay, want.dlog_decay, bound);
      EXPECT_TRUE(at::equal(got.dk, test::DeltaRuleAnswer(moved).dk)) << "bits differ";
    }
}

TEST_P(DeltaRuleGpuTest, StepsContinueAPrefill) {
  const at::NoGradGuard no_grad;
  DeltaProblem problem = MakeDeltaProblem(
      {.seq_len = 70, .value_heads = 4, .dim_k = 64, .dim_v = 40, .gate = gate()}, 500);
  const DeltaRuleInputs moved = Moved(problem.inputs);
  const DeltaRuleOutput want = DeltaRule(problem.inputs, problem.scale);
  const auto prefix = [](const at::Tensor& x) { return x.defined() ? x.narrow(1, 0, 65) : x; };
  DeltaRuleInputs before = moved;
  for (at::Tensor* x : {&before.q, &before.k, &before.v, &before.log_decay, &before.beta})
    *x = prefix(*x);
  at::Tensor state = DeltaRule(before, problem.scale).final_state, out;
  for (int64_t t = 65; t < 70; ++t) {
    const auto at = [&](const at::Tensor& x) { return x.defined() ? x.select(1, t) : x; };
    out = DeltaRuleStep({.q = at(moved.q),
                         .k = at(moved.k),
                         .v = at(moved.v),
                         .log_decay = at(moved.log_decay),
                         .beta = at(moved.beta)},
                        problem.scale, state);
  }
  ExpectNear(out, want.out.select(1, 69));
  ExpectNear(state, want.final_state);
}

INSTANTIATE_TEST_SUITE_P(Gates, DeltaRuleGpuTest,
                         testing::Combine(testing::Values(DeltaGate::kNone, DeltaGate::kPerHead,
                                                          DeltaGate::kPerChannel),
                                          testing::Values(at::kFloat, at::kBFloat16)));

}  // namespace
}  // namespace halflife::ops
