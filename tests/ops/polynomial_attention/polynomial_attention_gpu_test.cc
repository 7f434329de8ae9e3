// Every form of polynomial attention on a GPU equals the oracle. Skipped without a GPU.
#include <c10/core/GradMode.h>

#include "kernels/polynomial_attention/problem.h"
#include "ops/gpu_test.h"

namespace halflife::kernels {
namespace {

using namespace test;

class PolynomialAttentionGpuTest : public halflife::test::GpuTest<testing::TestWithParam<Kernel>> {
};

// The pairwise tensor-core kernel, whose operands and results are rounded to bf16. dq and dk have
// at most four roundings of 2^-9: of the weights, of out (through dO . out), of the scores'
// gradients, and their own. The error is relative to their terms, which may cancel in a small
// gradient.
TEST_P(PolynomialAttentionGpuTest, TokenAgainstToken) {
  for (const std::vector<int32_t>& starts :
       {std::vector<int32_t>{}, std::vector<int32_t>{5, 64, 200, 300, 364}}) {
    const Problem p = MakeProblem(
        {.batch = 2, .seq_len = 300, .dim_v = 64, .kernel = GetParam(), .document_starts = starts},
        3, at::kBFloat16);
    const RunConfig run = {.dtype = at::kBFloat16,
                           .chunk_size = 64,
                           .form = PolynomialForm::kQuadratic,
                           .device = at::kCUDA};
    const Answer got = RunKernel(p, run);
    Answer want = Oracle(p);
    for (const auto& [name, terms] : GradientTerms(p, want.at("out"))) {
      EXPECT_LE(ErrorOfTerms(got.at(name), want.at(name), terms), 4 * 0x1p-9) << name;
      want.erase(name);
    }
    ExpectClose(got, want, 2e-2);
    for (const auto& [name, tensor] : RunKernel(p, run))
      EXPECT_TRUE(BitEqual(tensor, got.at(name))) << name;
  }
}

// The per-token kernel in fp32, with initial and final states.
TEST_P(PolynomialAttentionGpuTest, WithStates) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Problem p = MakeProblem(
        {.seq_len = 90, .kernel = GetParam(), .states = GetParam().normalise}, 3, dtype);
    const RunConfig run = {.dtype = dtype, .chunk_size = 64, .device = at::kCUDA};
    // Sums of features cancel if q and the first keys are almost orthogonal.
    ExpectClose(RunKernel(p, run), Oracle(p), dtype == at::kFloat ? 1e-3 : 2e-2);
  }
}

// bf16 with pairs and features: reproducible, like the per-token kernel. Its segments equal those
// of the CPU, but the per-token kernel rounds differently.
TEST_P(PolynomialAttentionGpuTest, StatesByFeatures) {
  for (const std::vector<int32_t>& starts :
       {std::vector<int32_t>{}, std::vector<int32_t>{5, 64, 364}}) {
    const Problem p = MakeProblem({.batch = 2,
                                   .seq_len = 300,
                                   .dim_v = 64,
                                   .kernel = GetParam(),
                                   .states = true,
                                   .document_starts = starts},
                                  3, at::kBFloat16);
    const RunConfig run = {.dtype = at::kBFloat16,
                           .chunk_size = 64,
                           .form = PolynomialForm::kByShape,
                           .device = at::kCUDA};
    const Answer got = RunKernel(p, run);
    ExpectClose(got, Oracle(p), 2e-2);
    for (const auto& [name, tensor] : RunKernel(p, run))
      EXPECT_TRUE(BitEqual(tensor, got.at(name))) << name;
  }
}

TEST_P(PolynomialAttentionGpuTest, PiecesByFeatures) {
  const Problem p = MakeProblem({.batch = 2,
                                 .seq_len = 300,
                                 .dim_v = 64,
                                 .kernel = GetParam(),
                                 .states = true,
                                 .document_starts = {5, 64}},
                                3, at::kBFloat16);
  ops::PolynomialAttentionConfig config = p.Config();
  const auto pieces = [&](at::Device device, at::ScalarType dtype) {
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto to = [&](const at::Tensor& x, at::ScalarType as) {
      return x.defined() ? x.to(device).to(as) : x;
    };
    const ops::PolynomialAttentionInputs in = {
        .q = to(p.q, dtype).requires_grad_(),
        .k = to(p.k, dtype),
        .v = to(p.v, dtype),
        .chunks = ChunksOf(p.shape, 64, device),
        .initial_state = {.kv = to(p.initial.kv, wide), .norm = to(p.initial.norm, wide)}};
    const ops::PolynomialAttentionOutput output = ops::PolynomialAttention(in, config);
    const c10::AutoGradMode no_grad(false);
    const ops::PolynomialState own = ops::Summarise(in, config),
                               before =
                                   ops::BackwardSummarise(in, config, output, to(p.dout, dtype));
    return Answer{{"own", own.kv.cpu()}, {"before", before.kv.cpu()}};
  };
  const Answer want = pieces(at::kCPU, at::kDouble), got = pieces(at::kCUDA, at::kBFloat16);
  // Sums of features are fp32, so a state has no bf16 rounding.
  EXPECT_LE(RelativeError(got.at("own"), want.at("own")), 1e-5);
  ExpectClose(got, want, 2e-2);
}

INSTANTIATE_TEST_SUITE_P(Kernels, PolynomialAttentionGpuTest, testing::ValuesIn(kKernels),
                         [](const testing::TestParamInfo<Kernel>& kernel) {
                           std::string name = kernel.param.name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace halflife::kernels
