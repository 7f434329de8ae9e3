// The gradient norm is the fp64 sum and does not depend on threads or slices.
#include "train/step/gradient_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace halflife::train {
namespace {

dist::ParameterLayout MakeLayout(int num_slices) {
  return dist::ParameterLayout(
      {{.name = "a", .shape = {100003}}, {.name = "b", .shape = {7, 13}}},
      {.first_bucket_bytes = 4, .bucket_bytes = 4, .num_slices = num_slices});
}

at::Tensor Filled(const dist::ParameterLayout& layout) {
  at::Tensor flat = at::zeros({layout.num_elements()});
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    const int64_t count = layout.specs()[i].count();
    flat.narrow(0, layout.offset(i), count).copy_(at::linspace(-3, 5, count, at::kFloat));
  }
  return flat;
}

TEST(GradientNorm, IsTheFp64SumForAnyThreadCount) {
  const dist::ParameterLayout layout = MakeLayout(1);
  const at::Tensor flat = Filled(layout);
  double expected = 0;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double x = flat.const_data_ptr<float>()[i];
    expected += x * x;
  }
  at::set_num_threads(1);
  const double one = SumOfSquares(layout.AllFragments(), flat);
  at::set_num_threads(2);
  EXPECT_EQ(one, SumOfSquares(layout.AllFragments(), flat));
  EXPECT_NEAR(one / expected, 1, 1e-12);  // 1e5 additions, each with an error of 2^-53.
}

TEST(GradientNorm, DoesNotDependOnTheNumberOfSlices) {
  const dist::ParameterLayout one = MakeLayout(1), seven = MakeLayout(7);
  ASSERT_NE(one.num_elements(), seven.num_elements());
  EXPECT_EQ(SumOfSquares(one.AllFragments(), Filled(one)),
            SumOfSquares(seven.AllFragments(), Filled(seven)));
}

}  // namespace
}  // namespace halflife::train
