// The CUDA kernels of elementwise and row operations, through their bindings, give the results of
// the CPU on the same tensors. Skipped without a GPU.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <vector>

#include "kernels/adamw/adamw_args.h"
#include "ops/cross_entropy/linear_cross_entropy.h"
#include "ops/gpu_test.h"
#include "ops/gradient_check.h"
#include "ops/rows/row_operations.h"
#include "ops/rows/state_space_gates.h"
#include "ops/scans/selective_scan.h"
#include "ops/scans/wkv4.h"
#include "ops/torch/dispatch.h"

namespace halflife::kernels {
namespace {

using test::Normal;
using test::RowOperation;
using test::Tensors;
using Function = std::function<at::Tensor(const Tensors&)>;

Tensors RunOnDevice(const Function& function, const Tensors& inputs, at::ScalarType dtype,
                    at::DeviceType device) {
  Tensors leaves;
  for (const at::Tensor& x : inputs) {
    const at::Tensor stored = x.scalar_type() == at::kDouble ? x.to(dtype) : x;
    leaves.push_back(stored.to(device).clone().requires_grad_());
  }
  const at::Tensor y = function(leaves);
  const at::Tensor dy = Normal(y.sizes().vec(), 999, y.scalar_type()).to(device);
  Tensors results = {y.detach().cpu()};
  for (const at::Tensor& grad : torch::autograd::grad({y}, leaves, {dy}))
    results.push_back(grad.cpu());
  return results;
}

// Compares value and gradients. fp64 inputs are converted to `dtype`, fp32 inputs (weights) are
// kept. fp32 allows another order of sums. In bf16, the two sides may round to neighbouring values,
// each time that they round.
void ExpectSameOnBoth(const Function& function, const Tensors& inputs, at::ScalarType dtype,
                      double fp32 = 1e-5, int roundings = 1) {
  const Tensors want = RunOnDevice(function, inputs, dtype, at::kCPU),
                got = RunOnDevice(function, inputs, dtype, at::kCUDA),
                again = RunOnDevice(function, inputs, dtype, at::kCUDA);
  for (size_t i = 0; i < want.size(); ++i) {
    const double tolerance =
        want[i].scalar_type() == at::kBFloat16 ? std::max(1, roundings) * 0x1p-7 : fp32;
    EXPECT_TRUE(test::Close(got[i], want[i], tolerance)) << (i == 0 ? "value" : "gradient ") << i;
    EXPECT_TRUE(test::BitEqual(got[i], again[i])) << (i == 0 ? "value" : "gradient ") << i;
  }
}

class RowOperationGpuTest
    : public test::GpuTest<testing::TestWithParam<std::tuple<RowOperation, at::ScalarType>>> {};
INSTANTIATE_TEST_SUITE_P(Table, RowOperationGpuTest,
                         testing::Combine(testing::ValuesIn(test::RowOperations()),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& at) {
                           return std::get<0>(at.param).name +
                                  (std::get<1>(at.param) == at::kFloat ? "Fp32" : "Bf16");
                         });

TEST_P(RowOperationGpuTest, EqualsTheCpu) {
  const auto& [operation, dtype] = GetParam();
  for (const auto& [rows, width] : operation.shapes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    ExpectSameOnBoth(operation.run, operation.operands(rows, width), dtype, 1e-5,
                     operation.roundings);
  }
}

class StepKernelsGpuTest : public test::GpuTest<testing::TestWithParam<at::ScalarType>> {
 protected:
  static void ExpectSameOnBoth(const Function& function, const Tensors& inputs,
                               double fp32 = 1e-5) {
    kernels::ExpectSameOnBoth(function, inputs, GetParam(), fp32);
  }
};

// One third of the rows is below the limits, one between them and one above. No step is close to a
// limit, where a rounding decides whether it has a gradient.
TEST_P(StepKernelsGpuTest, StepGate) {
  constexpr int64_t kRows = 1500;
  const at::Tensor sides = at::arange(kRows).remainder(3).sub(1).mul(10).unsqueeze(1);
  for (const int64_t dim : {7, 64, 1000}) {
    SCOPED_TRACE(dim);
    ExpectSameOnBoth(
        [&](const Tensors& in) {
          const auto [step, log_decay] =
              ops::StepGate({.x = in[0].narrow(1, 8, dim), .bias = in[1], .a_log = in[2]},
                            {.least = 0.05, .most = 3});
          return step + log_decay;
        },
        {Normal({kRows, dim + 24}, 1) * 0.3 + sides, Normal({dim}, 2, at::kFloat) * 0.1,
         Normal({dim}, 3, at::kFloat)});
  }
}

// The gradient of skip sums 1500 rows of up to 64 channels.
TEST_P(StepKernelsGpuTest, SkipGate) {
  for (const int64_t width : {7, 16, 64}) {
    const int64_t dim = 5 * width;
    SCOPED_TRACE(width);
    ExpectSameOnBoth(
        [&](const Tensors& in) {
          return ops::SkipGate({.y = in[0],
                                .x = in[1].narrow(1, 0, dim),
                                .skip = in[2],
                                .gate = in[1].narrow(1, dim, dim)});
        },
        {Normal({1500, dim}, 1), Normal({1500, 2 * dim}, 2), Normal({5}, 3, at::kFloat)});
  }
}

// RWKV-4's learned decay, p of -e^p, over more than one segment of a GPU. Each side is within 1e-5
// of an oracle, and its sums over tokens within four times that (wkv4_problem.h), so the two are
// within twice as much of each other.
TEST_P(StepKernelsGpuTest, Wkv4ByNegativeExponential) {
  at::Tensor starts = at::zeros({2, 300}, at::kBool);
  for (const int64_t t : {0, 30, 31, 128, 200}) starts[1][t] = true;
  for (const int64_t dim : {21, 64}) {
    SCOPED_TRACE(dim);
    ExpectSameOnBoth(
        [&](const Tensors& in) {
          return ops::Wkv4({.k = in[0],
                            .v = in[1],
                            .log_decay = in[2],
                            .negative_exp = true,
                            .bonus = in[3],
                            .starts = starts.to(in[0].device())})
              .out;
        },
        {Normal({2, 300, dim}, 1), Normal({2, 300, dim}, 2), Normal({dim}, 3, at::kFloat) - 2,
         Normal({dim}, 4, at::kFloat)},
        8e-5);
  }
}

// Mamba's learned A, p of -e^p, with b and c as columns of one matrix. Each side is within 2e-5 of
// an oracle (selective_scan_problem.h), so the two are within twice that.
TEST_P(StepKernelsGpuTest, SelectiveScanOfColumnsByNegativeExponential) {
  at::Tensor starts = at::zeros({2, 300}, at::kBool);
  for (const int64_t t : {0, 30, 31, 128, 200}) starts[1][t] = true;
  const int64_t rank = 5, states = 16;  // Columns of a row: the input of delta, b, c.
  for (const int64_t channels : {21, 130}) {
    SCOPED_TRACE(channels);
    ExpectSameOnBoth(
        [&](const Tensors& in) {
          return ops::SelectiveScan({.x = in[0],
                                     .delta = in[1],
                                     .delta_bias = in[2],
                                     .a = in[3],
                                     .negative_exp = true,
                                     .b = in[4].narrow(2, rank, states),
                                     .c = in[4].narrow(2, rank + states, states),
                                     .skip = in[5],
                                     .starts = starts.to(in[0].device())})
              .y;
        },
        {Normal({2, 300, channels}, 1), Normal({2, 300, channels}, 2),
         Normal({channels}, 3, at::kFloat), Normal({channels, states}, 4, at::kFloat),
         Normal({2, 300, rank + 2 * states}, 5), Normal({channels}, 6, at::kFloat)},
        4e-5);
  }
}

// Both sides use LibTorch's matmuls: fp32 sums of 24 terms. In bf16 a GPU also rounds the logits'
// gradient, 2^-9 of each term.
TEST_P(StepKernelsGpuTest, LinearCrossEntropy) {
  const at::Tensor targets =
      (at::arange(70, at::kLong) * 31) % 503 - (at::arange(70) % 5 == 4) * 600;
  ExpectSameOnBoth(
      [&](const Tensors& in) {
        return ops::LinearCrossEntropy({in[0], in[1], targets.to(in[0].device())},
                                       {.z_loss_weight = 0.1, .rows_per_block = 32})
            .objective;
      },
      {Normal({70, 24}, 1), Normal({503, 24}, 2)});
}

// Segments of an arena: uneven lengths with gaps, some without decay or copy, and some whose
// weights, gradients or moments are stored elsewhere.
struct Arena {
  static constexpr int kSegments = 300;
  static constexpr int64_t kShift = 5;
  int64_t size = 0, longest = 0;
  std::vector<AdamWSegment> segments;
  Arena() {
    for (int i = 0; i < kSegments; ++i) {
      const int64_t count = i == 7 ? 20001 : 1 + (i * 37) % 1500;
      segments.push_back({.begin = size,
                          .end = size + count,
                          .weight_decay = i % 3 == 0 ? 0.f : 0.1f,
                          .has_copy = i % 4 == 0 ? 0 : 1,
                          .main_shift = i % 2 == 0 ? 0 : kShift,
                          .grads_shift = i % 5 == 0 ? kShift : 0,
                          .moments_shift = i % 2 == 0 ? 0 : kShift});
      size += count + kShift + i % 3;
      longest = std::max(longest, count);
    }
  }
  // Returns w, m, v and the copy of w after `num_steps` updates on a device.
  Tensors After(int num_steps, at::Device device) const {
    const auto flat = [&](uint64_t seed) {
      return Normal({size + kShift}, seed, at::kFloat).to(device).clone();
    };
    Tensors x = {flat(1), at::zeros({size + kShift}, at::kFloat).to(device),
                 at::zeros({size + kShift}, at::kFloat).to(device),
                 at::zeros({size + kShift}, at::kBFloat16).to(device)};
    const at::Tensor table =
        at::from_blob(const_cast<AdamWSegment*>(segments.data()),
                      {static_cast<int64_t>(sizeof(AdamWSegment)) * kSegments}, at::kByte)
            .to(device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
    for (int step = 1; step <= num_steps; ++step) {
      const at::Tensor grads = flat(10 + step);
      const AdamWArgs args = {.main = x[0].mutable_data_ptr<float>(),
                              .grads = grads.const_data_ptr<float>(),
                              .m = x[1].mutable_data_ptr<float>(),
                              .v = x[2].mutable_data_ptr<float>(),
                              .copy = static_cast<uint16_t*>(x[3].mutable_data_ptr()),
                              .segments = static_cast<const AdamWSegment*>(table.const_data_ptr()),
                              .num_segments = kSegments,
                              .max_segment = longest,
                              .factors = MakeAdamWFactors({}, 1e-2, 0.25, step)};
      ops::RunOn(
          x[0], [&] { cpu::AdamW(args); }, [&](auto stream) { cuda::AdamW(args, stream); });
    }
    for (at::Tensor& one : x) one = one.cpu();
    return x;
  }
};

// Each element is read and written once. The compilers only differ in how they contract products
// and sums: a few roundings of 2^-24 of values of up to 4. Elements outside of all segments keep
// their bits: the zeros of the moments and the copy, and the weights.
class AdamWGpuTest : public test::GpuTest<testing::Test> {};
TEST_F(AdamWGpuTest, ManySegmentsEqualTheCpu) {
  const Arena arena;
  const Tensors want = arena.After(3, at::kCPU), got = arena.After(3, at::kCUDA);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(test::Close(got[i], want[i], 1e-6)) << i;
  EXPECT_TRUE(test::Close(got[3], want[3], 0x1p-8)) << "copy";
  for (const size_t i : {1, 2, 3})
    EXPECT_TRUE(got[i].eq(0).equal(want[i].eq(0))) << i << ": other elements were written";
  EXPECT_EQ(got[0].ne(want[0]).logical_and(want[1].eq(0)).sum().item<int64_t>(), 0);
}

INSTANTIATE_TEST_SUITE_P(Storage, StepKernelsGpuTest, testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace halflife::kernels
