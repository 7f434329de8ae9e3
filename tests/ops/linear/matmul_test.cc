// Our own matrix products on the CPU: any size, bits that do not depend on other rows, and their
// use in linear layers.
#include "kernels/linear/linear_products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

#include <limits>

#include "core/error.h"
#include "kernels/common/cpu/instruction_set.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_internal.h"
#include "ops/random_tensors.h"
#include "ops/torch/dispatch.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using cpu::InstructionSet;
using test::Normal;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class MatmulTest : public testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (cpu::UsableInstructionSets().front() < GetParam())
      GTEST_SKIP() << "this machine has no " << cpu::NameOf(GetParam());
    cpu::UseInstructionSet(GetParam());
  }
  void TearDown() override {
    omp_set_num_threads(threads_);
    cpu::UseInstructionSetOfEnvironment();
  }

 private:
  int threads_ = omp_get_max_threads();
};

// Returns a b, or `before` + a b, and checks that nothing is written after the result. b [depth,
// columns] is transposed or not.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b, bool transposed,
                   const at::Tensor& before = {}) {
  constexpr int64_t kGuard = 64;
  const int64_t size = a.size(0) * b.size(1);
  const at::Tensor memory = at::full({size + kGuard}, kNaN, at::kFloat),
                   lain = transposed ? b.t().contiguous() : b;
  memory.narrow(0, size, kGuard).fill_(7);
  if (before.defined()) memory.narrow(0, 0, size).copy_(before.flatten());
  const MatmulRight right = {.b = lain.const_data_ptr<float>(),
                             .depth = b.size(0),
                             .columns = b.size(1),
                             .transposed = transposed};
  const at::Tensor panels = at::full({MatmulPanelFloats(right)}, kNaN, at::kFloat);
  PackMatmulRight(right, panels.mutable_data_ptr<float>());
  Matmul({.rows = a.size(0),
          .depth = b.size(0),
          .columns = b.size(1),
          .a = a.const_data_ptr<float>(),
          .panels = panels.const_data_ptr<float>(),
          .add = before.defined(),
          .out = memory.mutable_data_ptr<float>()});
  EXPECT_TRUE((memory.narrow(0, size, kGuard) == 7).all().item<bool>()) << "written behind";
  return memory.narrow(0, 0, size).view({a.size(0), b.size(1)});
}

// Expects a b + start. An element consists of `depth` fused multiply-adds with one rounding each,
// in any order, so its error is at most `depth` half ulps of the sum of the terms' magnitudes.
void ExpectClose(const at::Tensor& got, const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& start) {
  const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  const at::Tensor bound = (at::mm(wide_a.abs(), wide_b.abs()) + start.abs()) *
                           (static_cast<double>(a.size(1)) * 0x1p-24);
  const at::Tensor excess =
      ((got.to(at::kDouble) - at::mm(wide_a, wide_b) - start).abs() / bound).flatten();
  EXPECT_TRUE((excess <= 1).all().item<bool>())
      << "element " << excess.argmax().item<int64_t>() << " is off by "
      << excess.max().item<double>() << " of its bound";
}

void ExpectProduct(int64_t rows, int64_t depth, int64_t columns) {
  const at::Tensor a = Normal({rows, depth}, 1, at::kFloat),
                   b = Normal({depth, columns}, 2, at::kFloat),
                   before = Normal({rows, columns}, 3, at::kFloat);
  for (const bool transposed : {false, true})
    for (const bool add : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << "[" << rows << ", " << depth << "] [" << depth << ", " << columns << "]"
                   << (transposed ? ", transposed" : "") << (add ? ", added, " : ", ")
                   << omp_get_max_threads() << " threads");
      const at::Tensor start = before.to(at::kDouble) * (add ? 1 : 0);
      ExpectClose(Product(a, b, transposed, add ? before : at::Tensor()), a, b, start);
    }
}

TEST_P(MatmulTest, AnySizes) {
  for (const int threads : {1, 5}) {
    omp_set_num_threads(threads);
    for (const int64_t rows : {1, 5, 6, 7, 12, 13, 239, 240, 241, 1000})
      ExpectProduct(rows, 20, 33);
    for (const int64_t depth : {1, 2, 127, 128, 129, 255, 256, 257, 600})
      ExpectProduct(19, depth, 40);
    for (const int64_t columns : {1, 8, 15, 16, 17, 31, 32, 33, 100})
      ExpectProduct(19, 30, columns);
  }
}

TEST_P(MatmulTest, BitsOfARowDependOnNothingElse) {
  const at::Tensor a = Normal({700, 300}, 1, at::kFloat), b = Normal({300, 70}, 2, at::kFloat);
  omp_set_num_threads(1);
  const at::Tensor want = Product(a, b, false);
  EXPECT_TRUE(test::BitEqual(Product(a, b, true), want));
  for (const int threads : {2, 3, 16}) {
    omp_set_num_threads(threads);
    EXPECT_TRUE(test::BitEqual(Product(a, b, false), want)) << threads << " threads";
  }
  EXPECT_TRUE(test::BitEqual(Product(a.narrow(0, 101, 400), b, false), want.narrow(0, 101, 400)));
}

TEST_P(MatmulTest, NaNStaysInItsRowOrColumn) {
  const at::Tensor a = Normal({50, 300}, 1, at::kFloat), b = Normal({300, 30}, 2, at::kFloat);
  a[49][280] = kNaN;
  b[3][29] = kNaN;
  const at::Tensor heard = at::isnan(Product(a, b, true));
  EXPECT_TRUE(heard[49].all().item<bool>());
  EXPECT_TRUE(heard.select(1, 29).all().item<bool>());
  EXPECT_EQ(heard.sum().item<int64_t>(), 30 + 50 - 1);
}

TEST_P(MatmulTest, BitsAreThoseOfAvx2) {
  const at::Tensor a = Normal({250, 300}, 1, at::kFloat), b = Normal({300, 70}, 2, at::kFloat);
  const at::Tensor got = Product(a, b, true);
  cpu::UseInstructionSet(InstructionSet::kAvx2);
  EXPECT_TRUE(test::BitEqual(got, Product(a, b, true)));
}

// a weight^T in fp32 for an fp32 or bf16 weight, checked for writes behind the result.
at::Tensor SkinnyProduct(const at::Tensor& a, const at::Tensor& weight) {
  constexpr int64_t kGuard = 64;
  const int64_t size = a.size(0) * weight.size(0);
  const at::Tensor memory = at::full({size + kGuard}, kNaN, at::kFloat);
  memory.narrow(0, size, kGuard).fill_(7);
  const auto multiply = [&]<typename T>(const T* data) {
    SkinnyMatmul<T>({.rows = a.size(0),
                     .depth = a.size(1),
                     .columns = weight.size(0),
                     .a = a.const_data_ptr<float>(),
                     .weight = data,
                     .out = memory.mutable_data_ptr<float>()});
  };
  weight.scalar_type() == at::kFloat ? multiply(weight.const_data_ptr<float>())
                                     : multiply(ops::Elements<Bf16>(weight));
  EXPECT_TRUE((memory.narrow(0, size, kGuard) == 7).all().item<bool>()) << "written behind";
  return memory.narrow(0, 0, size).view({a.size(0), weight.size(0)});
}

TEST_P(MatmulTest, SkinnyOfAnySize) {
  const auto expect = [](int64_t rows, int64_t depth, int64_t columns) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << depth << ", " << columns);
    const at::Tensor a = Normal({rows, depth}, 1, at::kFloat),
                     weight = Normal({columns, depth}, 2, at::kFloat);
    ExpectClose(SkinnyProduct(a, weight), a, weight.t(), at::zeros({}, at::kDouble));
    const at::Tensor narrow = weight.to(at::kBFloat16);
    EXPECT_TRUE(test::BitEqual(SkinnyProduct(a, narrow), SkinnyProduct(a, narrow.to(at::kFloat))));
  };
  for (const int threads : {1, 5}) {
    omp_set_num_threads(threads);
    for (int64_t rows = 1; rows <= 13; ++rows) expect(rows, 20, 33);
    for (const int64_t depth : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 600}) expect(7, depth, 40);
    for (const int64_t columns : {1, 2, 3, 5, 6, 7, 8, 9, 23, 24, 25, 100}) expect(7, 30, columns);
    expect(5, 3000, 100);  // several blocks of the weight
  }
}

TEST_P(MatmulTest, SkinnyBitsOfARowDependOnNothingElse) {
  const at::Tensor a = Normal({30, 2100}, 1, at::kFloat),
                   weight = Normal({75, 2100}, 2, at::kFloat);
  omp_set_num_threads(1);
  const at::Tensor want = SkinnyProduct(a, weight);
  for (const int64_t rows : {1, 2, 3, 4, 5, 8, 17})
    for (const int64_t first : {0, 1, 13})
      EXPECT_TRUE(test::BitEqual(SkinnyProduct(a.narrow(0, first, rows).contiguous(), weight),
                                 want.narrow(0, first, rows)))
          << rows << " rows from " << first;
  for (const int threads : {2, 3, 16}) {
    omp_set_num_threads(threads);
    EXPECT_TRUE(test::BitEqual(SkinnyProduct(a, weight), want)) << threads << " threads";
  }
}

TEST_P(MatmulTest, SkinnyNaNStaysInItsRowOrColumn) {
  const at::Tensor a = Normal({9, 301}, 1, at::kFloat), weight = Normal({30, 301}, 2, at::kFloat);
  a[8][300] = kNaN;
  weight[29][3] = kNaN;
  const at::Tensor heard = at::isnan(SkinnyProduct(a, weight));
  EXPECT_TRUE(heard[8].all().item<bool>());
  EXPECT_TRUE(heard.select(1, 29).all().item<bool>());
  EXPECT_EQ(heard.sum().item<int64_t>(), 30 + 9 - 1);
}

INSTANTIATE_TEST_SUITE_P(Forms, MatmulTest,
                         testing::Values(InstructionSet::kAvx2, InstructionSet::kAvx512),
                         [](const auto& form) {
                           return form.param == InstructionSet::kAvx2 ? "Avx2" : "Avx512";
                         });

// Tests on machines on which linear layers use the kernel.
class LinearMatmulTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cpu::UsableInstructionSets().front() < InstructionSet::kAvx2)
      GTEST_SKIP() << "this machine has no AVX2; linear layers use BLAS";
    cpu::UseInstructionSet(InstructionSet::kAvx2);
    ASSERT_TRUE(HasMatmul());
  }
  void TearDown() override { cpu::UseInstructionSetOfEnvironment(); }
};

// The bits show which one ran: our sums of 300 products have another order than those of BLAS.
TEST_F(LinearMatmulTest, LinearLayersTakeItFromEnoughRowsOn) {
  const at::Tensor weight = Normal({70, 300}, 2, at::kFloat);
  for (const int64_t rows : {127, 128}) {
    const at::Tensor x =
        Normal({2, rows / 2 + rows % 2, 300}, 1, at::kFloat).flatten(0, 1).narrow(0, 0, rows);
    const at::Tensor got = ops::Linear(x, weight), own = Product(x, weight.t().contiguous(), true);
    EXPECT_TRUE(test::BitEqual(got, rows < 128 ? at::linear(x, weight) : own)) << rows << " rows";
  }
  const at::Tensor x = Normal({128, 300}, 1, at::kFloat), own = ops::Linear(x, weight);
  cpu::UseInstructionSet(InstructionSet::kBaseline);
  EXPECT_TRUE(test::BitEqual(ops::Linear(x, weight), at::linear(x, weight)));
  // MKL uses the same order on some Intel processors, so the two cannot be distinguished there.
  if (test::BitEqual(at::linear(x, weight), own)) GTEST_SKIP() << "BLAS has the same bits here";
  EXPECT_FALSE(test::BitEqual(ops::Linear(x, weight), own));
}

TEST_F(LinearMatmulTest, InferenceTakesTheSkinnyOneForFewRows) {
  const at::Tensor weight = Normal({70, 300}, 2, at::kFloat), x = Normal({9, 300}, 1, at::kFloat);
  const at::Tensor rows[] = {x, x.narrow(0, 0, 8)};
  const at::Tensor skinny = SkinnyProduct(rows[1], weight);
  ASSERT_FALSE(test::BitEqual(skinny, at::linear(rows[1], weight))) << "the bits show nothing";
  EXPECT_TRUE(test::BitEqual(ops::Linear(rows[1], weight), at::linear(rows[1], weight)));
  const c10::InferenceMode inference;
  EXPECT_TRUE(test::BitEqual(ops::Linear(rows[0], weight), at::linear(rows[0], weight)));
  EXPECT_TRUE(test::BitEqual(ops::Linear(rows[1].view({2, 4, 300}), weight).flatten(0, 1), skinny));
  const at::Tensor narrow = rows[1].to(at::kBFloat16), narrow_weight = weight.to(at::kBFloat16);
  EXPECT_TRUE(
      test::BitEqual(ops::Linear(narrow, narrow_weight),
                     SkinnyProduct(narrow.to(at::kFloat), narrow_weight).to(at::kBFloat16)));
  EXPECT_HL_ERROR(ops::Linear(at::empty({2, 80}), at::empty({7, 81})), ExitCode::kInternal,
                  "[2, 80]", "rows of 81 elements");
}

TEST_F(LinearMatmulTest, GradientsOfInputsAreTheFormula) {
  const auto grad = [](at::ScalarType dtype) {
    const at::Tensor x = Normal({3, 50, 65}, 1, dtype).requires_grad_();
    const auto y =
        ops::SharedInputLinear(x, {Normal({70, 65}, 2, dtype), Normal({9, 65}, 3, dtype)});
    const at::Tensor expanded = Normal({9}, 5, dtype).expand_as(y[1]);
    ((y[0] * Normal({3, 50, 70}, 4, dtype)).sum() + (y[1] * expanded).sum()).backward();
    return x.grad();
  };
  EXPECT_TRUE(test::Close(grad(at::kFloat), grad(at::kDouble), 1e-6));
}

TEST_F(LinearMatmulTest, SaysWhatDoesNotFit) {
  EXPECT_HL_ERROR(ops::Linear(at::empty({200, 80}), at::empty({7, 81})), ExitCode::kInternal,
                  "[200, 80]", "[rows, 81].");
}

TEST_F(LinearMatmulTest, ReplacesAvx512OnlyOnAmd) {
  if (cpu::UsableInstructionSets().front() < InstructionSet::kAvx512)
    GTEST_SKIP() << "this machine has no AVX-512";
  cpu::UseInstructionSet(InstructionSet::kAvx512);
  EXPECT_EQ(HasMatmul(), cpu::IsAmd());
}

}  // namespace
}  // namespace halflife::kernels
