// Properties of every row operation of row_operations.h.
#include "ops/rows/row_operations.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "ops/gradient_check.h"
#include "ops/sink_check.h"

namespace halflife::ops {
namespace {

using test::RowOperation;
using test::Tensors;

Tensors Leaves(const RowOperation& operation, int64_t rows, int64_t width, at::ScalarType dtype) {
  Tensors leaves;
  for (const at::Tensor& x : operation.operands(rows, width))
    leaves.push_back(
        x.to(x.scalar_type() == at::kDouble ? dtype : at::kFloat).clone().requires_grad_());
  return leaves;
}

// at::empty() gives NaN, so memory that a kernel should have written but has not is noticed.
class RowOperationTest : public testing::TestWithParam<RowOperation> {
 protected:
  void SetUp() override {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};
INSTANTIATE_TEST_SUITE_P(Table, RowOperationTest, testing::ValuesIn(test::RowOperations()),
                         [](const auto& at) { return at.param.name; });

TEST_P(RowOperationTest, FusedLoopsMatchFp64) {
  const RowOperation& operation = GetParam();
  for (const auto& [rows, width] : operation.shapes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    test::ExpectFloatMatchesDouble(operation.run, operation.operands(rows, width), operation.fp32);
  }
}

// The numbers of fp64 on the same bf16 operands, rounded as often as the table says.
TEST_P(RowOperationTest, Bf16MatchesFp64) {
  const RowOperation& operation = GetParam();
  for (const auto& [rows, width] : operation.shapes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    test::ExpectBf16MatchesDouble(operation.run, operation.operands(rows, width),
                                  operation.roundings, operation.weight_roundings);
  }
}

// The operands and the gradient of the value begin one element after an aligned address.
TEST_P(RowOperationTest, MisalignedMemory) {
  const auto shifted = [](const at::Tensor& x) {
    const at::Tensor one = at::zeros({1}, x.options().requires_grad(false));
    return at::cat({one, x.flatten()}).narrow(0, 1, x.numel()).view(x.sizes());
  };
  const auto run = [&](const Tensors& in) {
    Tensors moved;
    for (const at::Tensor& x : in) moved.push_back(shifted(x));
    return shifted(GetParam().run(moved));
  };
  const RowOperation& operation = GetParam();
  const Tensors operands = operation.operands(34, 64);
  test::ExpectFloatMatchesDouble(run, operands, operation.fp32);
  test::ExpectBf16MatchesDouble(run, operands, operation.roundings, operation.weight_roundings);
}

// Gradients that are columns of a matrix leave its other columns as they are: they keep the NaN of
// at::empty().
TEST_P(RowOperationTest, OnlyTheirColumnsAreWritten) {
  bool has_columns = false;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t width : {22, 64}) {
      SCOPED_TRACE(testing::Message() << dtype << ", width " << width);
      const Tensors leaves = Leaves(GetParam(), 90, width, dtype);
      const at::Tensor y = GetParam().run(leaves);
      const at::Tensor dy = test::Normal(y.sizes().vec(), 9, y.scalar_type());
      const Tensors gradients = torch::autograd::grad({y}, leaves, {dy});
      for (const at::Tensor& gradient : gradients) {
        // A gradient may be columns of dy, which are not written.
        if (gradient.is_contiguous() || gradient.storage().is_alias_of(dy.storage())) continue;
        has_columns = true;
        const auto size =
            static_cast<int64_t>(gradient.storage().nbytes()) / gradient.element_size();
        const at::Tensor others = at::ones({size}, at::kBool);
        for (const at::Tensor& written : gradients)
          if (written.storage().is_alias_of(gradient.storage()))
            others.as_strided(written.sizes(), written.strides(), written.storage_offset())
                .fill_(false);
        at::Tensor matrix = at::empty({0}, gradient.options());
        matrix.set_(gradient.storage(), 0, {size}, {1});
        EXPECT_TRUE(matrix.masked_select(others).isnan().all().item<bool>());
      }
    }
  if (!has_columns) GTEST_SKIP() << "writes no columns";
}

TEST_P(RowOperationTest, NoRows) {
  test::ExpectFloatMatchesDouble(GetParam().run, GetParam().operands(0, 8), GetParam().fp32);
}

TEST_P(RowOperationTest, GradientsAreFiniteDifferences) {
  test::ExpectFiniteDifferences(
      [](const Tensors& in) {
        const at::Tensor y = GetParam().run(in);
        return (y * test::Normal(y.sizes().vec(), 9)).sum();
      },
      test::To(at::kDouble, GetParam().operands(8, 6)));
}

TEST_P(RowOperationTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(dtype);
    test::ExpectSameBitsWithThreads([&] {
      const Tensors leaves = Leaves(GetParam(), 700, 48, dtype);
      const at::Tensor y = GetParam().run(leaves);
      return torch::autograd::grad({y}, leaves,
                                   {test::Normal(y.sizes().vec(), 9, y.scalar_type())});
    });
  }
}

TEST_P(RowOperationTest, WeightsGradientsGoToTheirSinks) {
  for (const bool added : {false, true}) {
    const Tensors leaves = Leaves(GetParam(), 300, 21, at::kBFloat16);
    Tensors weights;
    for (const at::Tensor& leaf : leaves)
      if (leaf.scalar_type() == at::kFloat) weights.push_back(leaf);
    if (weights.empty()) GTEST_SKIP() << "has no weights";
    const at::Tensor y = GetParam().run(leaves);
    const at::Tensor dy = test::Normal(y.sizes().vec(), 9, y.scalar_type());
    test::ExpectGradientsInSinks(y, dy, weights, added);
  }
}

}  // namespace
}  // namespace halflife::ops
