// FP8 layers on a GPU give the results of their emulation on the CPU, up to the order of sums.
// Skipped without a GPU that has FP8 matrix units.
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>

#include <cmath>

#ifdef HALFLIFE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "ops/gpu_test.h"
#include "ops/gradient_check.h"
#include "ops/linear/float8_linear.h"
#include "ops/linear/linear.h"

namespace halflife::ops {
namespace {

using test::Normal;

class Float8GpuTest : public test::GpuTest<testing::Test> {
 protected:
  void SetUp() override {
    test::GpuTest<testing::Test>::SetUp();
    if (IsSkipped()) return;
#ifdef HALFLIFE_WITH_CUDA
    cudaDeviceProp properties{};
    ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    if (10 * properties.major + properties.minor < 89) GTEST_SKIP() << "no FP8 matrix units";
#endif
  }
};

TEST_F(Float8GpuTest, ConvertsToTheBitsOfTheCpu) {
  for (const int64_t width : {16, 1024, 2816, 8192}) {
    at::Tensor x = Normal({37, width}, 1, at::kBFloat16);
    x[1].zero_(), x[2].mul_(0x1p-60f), x[3][5].fill_(INFINITY);
    const Float8Matrix on_gpu = ToFloat8(x.to(at::kCUDA));
    const at::Tensor got = on_gpu.values.to(at::kFloat).cpu() * on_gpu.factors.cpu(),
                     want = ToFloat8(x).values.to(at::kFloat);
    EXPECT_TRUE(at::allclose(got, want, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true)) << width;
  }
}

std::vector<at::Tensor> ForwardAndGradients(at::DeviceType device) {
  const at::Tensor memory = Normal({512, 1024}, 1, at::kBFloat16).to(device);
  std::vector<at::Tensor> weights;
  const auto float8 = std::make_shared<Float8Weights>(/*keeps=*/true);
  for (const int64_t begin : {0, 256}) {
    weights.push_back(memory.narrow(0, begin, 256).detach().requires_grad_());
    SetFloat8Weights(weights.back(), float8);
  }
  const at::Tensor x = Normal({700, 1024}, 2, at::kBFloat16).to(device).requires_grad_();
  const at::Tensor y = at::cat(SharedInputLinear(x, weights), -1);
  y.backward(Normal({700, 512}, 3, at::kBFloat16).to(device));
  return {y.detach().cpu(), x.grad().cpu(), weights[0].grad().cpu()};
}

TEST_F(Float8GpuTest, LayersEqualTheirEmulation) {
  const auto got = ForwardAndGradients(at::kCUDA), again = ForwardAndGradients(at::kCUDA),
             want = ForwardAndGradients(at::kCPU);
  for (size_t i = 0; i < want.size(); ++i) {
    // Rounding to bf16 after sums in another order differs in few elements. Fast accumulation in
    // the forward keeps about 14 bits.
    EXPECT_LT(test::MeanError(got[i], want[i]), 2e-3) << i;
    EXPECT_TRUE(test::BitEqual(got[i], again[i])) << i;
  }
}

}  // namespace
}  // namespace halflife::ops
