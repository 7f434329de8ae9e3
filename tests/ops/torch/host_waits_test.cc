// Which operations are counted as waits, launches and uploads, for operations with known counts.
#include "ops/torch/host_waits.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/concat.h"
#include "ops/rows/rms_norm.h"
#include "ops/torch/host_transfer.h"

namespace halflife::ops {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

HostCounts CountsOf(const std::function<void()>& action) {
  HostWaits waits;
  action();
  return waits.Take()[""];
}

at::Tensor Ones() { return at::full({4, 8}, 1.0); }

TEST(HostWaits, AValueThatTheHostReadsIsOne) {
  const at::Tensor x = Ones();
  EXPECT_THAT(CountsOf([&] { x.select(0, 0).select(0, 0).item<double>(); }).waits,
              ElementsAre(Pair("aten::_local_scalar_dense", 1)));
  EXPECT_THAT(CountsOf([&] { EXPECT_TRUE((x.sum() > 0).is_nonzero()); }).waits,
              ElementsAre(Pair("aten::_local_scalar_dense", 1)));
}

TEST(HostWaits, ASizeThatDependsOnValuesIsOne) {
  const at::Tensor x = Ones();
  EXPECT_THAT(CountsOf([&] { at::nonzero(x); }).waits, ElementsAre(Pair("aten::nonzero", 1)));
  EXPECT_THAT(CountsOf([&] { at::nonzero_static(x, 32); }).waits, IsEmpty());
  EXPECT_THAT(CountsOf([&] { x.index({x > 0}); }).waits, ElementsAre(Pair("aten::nonzero", 1)));
  const at::Tensor repeats = at::full({4}, 2, at::kLong);
  EXPECT_THAT(CountsOf([&] { at::repeat_interleave(x, repeats, 0); }).waits,
              ElementsAre(Pair("aten::repeat_interleave", 1)));
  EXPECT_THAT(CountsOf([&] { at::repeat_interleave(x, repeats, 0, 8); }).waits, IsEmpty());
  EXPECT_THAT(CountsOf([&] { x.repeat_interleave(2, 1); }).waits, IsEmpty());
}

TEST(HostWaits, ReadBackIsCountedForItself) {
  const at::Tensor x = Ones();
  const HostCounts counts = CountsOf([&] { EXPECT_TRUE(ReadBack(x).equal(Ones())); });
  EXPECT_EQ(counts.read_backs, 1);
  EXPECT_THAT(counts.waits, ElementsAre(Pair("aten::equal", 1)));  // The test's own read.
}

// A non-blocking copy between the host and a device waits if the memory is not pinned. (A tensor
// of device kMeta represents one on a GPU.)
TEST(HostWaits, ACopyFromUnpinnedMemoryIsOne) {
  const at::Tensor x = Ones(), elsewhere = at::empty_like(x, x.options().device(at::kMeta));
  EXPECT_THAT(CountsOf([&] { elsewhere.copy_(x, /*non_blocking=*/true); }).waits,
              ElementsAre(Pair("aten::copy_", 1)));
}

TEST(HostWaits, UploadsAreCountedAndAreNoWaits) {
  const std::vector<int64_t> values = {3, 1, 2};
  at::Tensor there;
  const HostCounts counts = CountsOf([&] { there = UploadValues(values, at::kCPU); });
  EXPECT_EQ(counts.uploads, 1);
  EXPECT_EQ(counts.num_waits(), 0);
  EXPECT_EQ(std::vector<int64_t>(there.const_data_ptr<int64_t>(),
                                 there.const_data_ptr<int64_t>() + there.numel()),
            values);
}

TEST(HostWaits, AnUploadIsACopyOfValuesThatGo) {
  std::vector<double> values = {1, 2};
  const at::Tensor there = UploadValues(values, at::kCPU);
  values[0] = 7;
  EXPECT_EQ(there[0].item<double>(), 1);
  struct Entry {
    int32_t a, b;
  };
  std::vector<Entry> table = {{1, 2}, {3, 4}};
  const at::Tensor bytes = UploadTable(table, at::kCPU);
  table.clear();
  ASSERT_EQ(bytes.numel(), 16);
  EXPECT_EQ(static_cast<const Entry*>(bytes.const_data_ptr())[1].b, 4);
  EXPECT_EQ(UploadTable(table, at::kCPU).numel(), 0);
}

TEST(HostWaits, ConstantsAreUploadedOnce) {
  const std::string bytes = "bytes";
  int made = 0;
  const auto make = [&] { return Concat(bytes, ++made); };
  const HostCounts counts = CountsOf([&] {
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(ConstantBytesOn(at::kCPU, bytes).numel(), 5);
      EXPECT_EQ(ConstantsOn(at::kCPU, std::vector<double>{1, 2, 4})[2].item<double>(), 4);
      EXPECT_EQ(
          static_cast<const char*>(NamedConstantOn(at::kCPU, "bytes", make).const_data_ptr())[5],
          '1');
      EXPECT_EQ(
          static_cast<const char*>(NamedConstantOn(at::kCPU, "others", make).const_data_ptr())[5],
          '2');
    }
  });
  EXPECT_EQ(counts.uploads, 4);
  EXPECT_EQ(made, 2);
}

TEST(HostWaits, ViewsAndAllocationsLaunchNothing) {
  const at::Tensor x = Ones();
  EXPECT_THAT(CountsOf([&] {
                x.narrow(0, 0, 2).transpose(0, 1).unsqueeze(0).expand({3, 8, 2}).detach();
                x.contiguous(), x.to(at::kFloat);  // It already is.
                x.flatten().view({2, 16});
              }).kernels,
              IsEmpty());
}

TEST(HostWaits, WhatIsMadeOfOthersCountsAsThem) {
  const at::Tensor x = Ones();
  EXPECT_THAT(CountsOf([&] { at::matmul(x, x.t()); }).kernels, ElementsAre(Pair("aten::mm", 1)));
  EXPECT_THAT(CountsOf([&] { at::silu(x) * x; }).kernels,
              UnorderedElementsAre(Pair("aten::mul", 1), Pair("aten::silu", 1)));
  EXPECT_THAT(CountsOf([&] { x.to(at::kDouble); }).kernels, ElementsAre(Pair("aten::copy_", 1)));
  EXPECT_EQ(CountsOf([&] { at::zeros({4, 8}); }).num_kernels(), 1);
}

TEST(HostWaits, KernelsOfTheProjectAndTheirBackwardAreSeen) {
  const at::Tensor x = Ones().requires_grad_(), weight = at::full({8}, 1.0).requires_grad_();
  HostWaits waits;
  waits.EnterPhase("forward");
  const at::Tensor sum = RmsNorm(x, weight, 1e-6).sum();
  waits.EnterPhase("backward");
  sum.backward();
  auto phases = waits.Take();
  EXPECT_EQ(phases["forward"].kernels[kKernelScope], 1);
  EXPECT_EQ(phases["backward"].kernels[kKernelScope], 1);
  EXPECT_EQ(phases["forward"].num_waits() + phases["backward"].num_waits(), 0);
}

TEST(HostWaits, OtherThreadsAndTimesAreNotCounted) {
  const at::Tensor x = Ones();
  x.sum().item<double>();
  EXPECT_EQ(CountsOf([&] { std::thread([&] { x.sum().item<double>(); }).join(); }).num_waits(), 0);
  {
    HostWaits waits;
    x.sum().item<double>();
    EXPECT_EQ(waits.Take()[""].num_waits(), 1);
    EXPECT_THAT(waits.Take(), IsEmpty());
  }
  HostWaits waits;
  EXPECT_THAT(waits.Take(), IsEmpty());
}

}  // namespace
}  // namespace halflife::ops
