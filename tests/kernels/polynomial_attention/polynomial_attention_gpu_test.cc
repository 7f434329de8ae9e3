// Polynomial attention on a GPU, in every form that it has there, against the oracle. Skips where
// there is no GPU.
#include "kernels/gpu_test.h"
#include "kernels/polynomial_attention/problem.h"

namespace halflife::kernels {
namespace {

using namespace test;

class PolynomialAttentionGpuTest : public halflife::test::GpuTest<testing::TestWithParam<Kernel>> {
};

// Every pair on matrix units: what they read is rounded to bf16, as is what is stored.
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
    ExpectClose(got, Oracle(p), 2e-2);
    for (const auto& [name, tensor] : RunKernel(p, run))
      EXPECT_TRUE(BitEqual(tensor, got.at(name))) << name;
  }
}

// Token by token, in fp32, with states at both ends.
TEST_P(PolynomialAttentionGpuTest, WithStates) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Problem p = MakeProblem(
        {.seq_len = 90, .kernel = GetParam(), .states = GetParam().normalise}, 3, dtype);
    const RunConfig run = {.dtype = dtype, .chunk_size = 64, .device = at::kCUDA};
    // Sums of features cancel where q and the first keys are nearly at right angles.
    ExpectClose(RunKernel(p, run), Oracle(p), dtype == at::kFloat ? 1e-3 : 2e-2);
  }
}

// Of bf16 by pairs and features, the pieces of sequence parallelism too.
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

INSTANTIATE_TEST_SUITE_P(Kernels, PolynomialAttentionGpuTest, testing::ValuesIn(kKernels),
                         [](const testing::TestParamInfo<Kernel>& kernel) {
                           std::string name = kernel.param.name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace halflife::kernels
