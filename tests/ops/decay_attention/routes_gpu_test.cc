// The two CUDA routes of decay attention, wgmma (Hopper only) and mma.sync, give the same outputs
// and gradients at the sizes of training, and each gives the same bits in every run. Skipped
// without a GPU with wgmma.
#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/decay_attention/decay_attention_args.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/gpu_test.h"

namespace halflife::kernels {
namespace {

// The shapes at which training and the benchmarks run: two long rows, a layer with wide values, and
// heads of 64 x 64.
struct FullSize {
  int64_t batch, seq_len, heads, dim_k, dim_v;
};
constexpr FullSize kFullSizes[] = {
    {2, 16384, 16, 128, 128}, {8, 2048, 8, 128, 256}, {8, 2048, 32, 64, 64}};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class DecayRoutesGpuTest
    : public test::GpuTest<testing::TestWithParam<std::tuple<FullSize, DecayKind>>> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
#ifdef HALFLIFE_WITH_CUDA
    if (!ops::LimitsOfGpu(0).warpgroups) GTEST_SKIP() << "no WGMMA: there is one route";
#endif
    at::manual_seed(5);
    const auto [size, kind] = GetParam();
    const int64_t B = size.batch, T = size.seq_len, H = size.heads, K = size.dim_k, V = size.dim_v;
    const at::TensorOptions wide = at::TensorOptions(at::kCUDA).dtype(at::kFloat),
                            half = wide.dtype(at::kBFloat16);
    config_.scale = 1 / std::sqrt(static_cast<double>(K));
    inputs_.q = at::randn({B, T, H, K}, half);
    inputs_.k = at::randn({B, T, H, K}, half);
    inputs_.v = at::randn({B, T, H, V}, half);
    inputs_.initial_state.kv = at::randn({B, H, K, V}, wide);
    dout_ = at::randn({B, T, H, V}, half);
    dfinal_state_.kv = at::randn({B, H, K, V}, wide);
    // Equal decays, so that all heads have the same part in the norm of their gradients. The
    // gradient of one head may be small by cancellation.
    if (kind == DecayKind::kPerHead)
      inputs_.log_decay = at::full({H}, -0.02, wide);
    else if (kind == DecayKind::kPerToken)
      inputs_.log_decay = at::rand({B, T, H}, wide).mul_(-0.1);
    else
      inputs_.log_decay = at::rand({B, T, H, K}, wide).mul_(-0.1);
  }
  NamedTensors Run(WarpgroupUse warpgroups) {
    config_.warpgroups = warpgroups;
    const ops::DecayAttentionOutput output = ops::DecayAttention(inputs_, config_);
    const ops::DecayAttentionGrads grads = ops::Backward(inputs_, config_, dout_, dfinal_state_);
    return {{"out", output.out},
            {"final_state", output.final_state.kv},
            {"dq", grads.dq},
            {"dk", grads.dk},
            {"dv", grads.dv},
            {"dlog_decay", grads.dlog_decay},
            {"dinitial_state", grads.dinitial_state.kv}};
  }

  ops::DecayAttentionInputs inputs_;
  ops::DecayAttentionConfig config_;
  at::Tensor dout_;
  ops::DecayState dfinal_state_;
};

// The largest gradient error of one route is 3.7e-3, from five roundings of bf16 (the bounds of
// kernels/decay_attention/cuda/long_rows_test.cc). The two routes share some of them, and the
// others are independent: at most sqrt(2) x 3.7e-3 = 5.2e-3, and a sixth more for the fluctuation
// over a few heads.
constexpr double kTolerance = 6e-3;

TEST_P(DecayRoutesGpuTest, GiveTheSameGradients) {
  const NamedTensors warpgroups = Run(WarpgroupUse::kAuto), warps = Run(WarpgroupUse::kOff);
  for (size_t i = 0; i < warps.size(); ++i) {
    const auto& [name, tensor] = warps[i];
    const at::Tensor want = tensor.to(at::kDouble), got = warpgroups[i].second.to(at::kDouble);
    // NaN fails.
    EXPECT_LE(got.sub(want).norm().item<double>(), kTolerance * want.norm().item<double>()) << name;
  }
}

TEST_P(DecayRoutesGpuTest, GiveTheSameBitsInEveryRun) {
  constexpr int kRuns = 20;
  for (const WarpgroupUse warpgroups : {WarpgroupUse::kAuto, WarpgroupUse::kOff}) {
    const NamedTensors first = Run(warpgroups);
    for (int run = 1; run < kRuns; ++run) {
      const NamedTensors again = Run(warpgroups);
      for (size_t i = 0; i < first.size(); ++i)
        ASSERT_TRUE(again[i].second.equal(first[i].second))
            << first[i].first << " of run " << run
            << (warpgroups == WarpgroupUse::kOff ? ", by warps" : ", by warpgroups");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecayRoutesGpuTest,
                         testing::Combine(testing::ValuesIn(kFullSizes),
                                          testing::Values(DecayKind::kPerHead, DecayKind::kPerToken,
                                                          DecayKind::kPerTokenChannel)));

}  // namespace
}  // namespace halflife::kernels
