// Rotary embeddings equal their formula and preserve distances.
#include "ops/rows/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <utility>
#include <vector>

#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;

at::Tensor Positions(int64_t batch, int64_t seq_len, int64_t first) {
  return (at::arange(seq_len, at::kLong) + first).unsqueeze(0).expand({batch, seq_len});
}

TEST(RotaryTest, TurnsHalvesByPositionTimesFrequency) {
  constexpr int64_t kDim = 8, kFirst = 3;
  const at::Tensor x = Normal({1, 5, 2, kDim}, 1);
  const at::Tensor y = ApplyRotary(x, MakeRotaryTable(Positions(1, 5, kFirst), kDim, 100));
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t j = 0; j < kDim / 2; ++j) {
      const double angle =
          static_cast<double>(kFirst + t) * std::pow(100.0, -2.0 * static_cast<double>(j) / kDim);
      const double a = x[0][t][1][j].item<double>(), b = x[0][t][1][j + kDim / 2].item<double>();
      // The table is rounded to fp32: errors of 2^-25 in cos and sin, with |a| + |b| < 8.
      EXPECT_NEAR(y[0][t][1][j].item<double>(), a * std::cos(angle) - b * std::sin(angle), 3e-7);
      EXPECT_NEAR(y[0][t][1][j + kDim / 2].item<double>(),
                  b * std::cos(angle) + a * std::sin(angle), 3e-7);
    }
  }
}

// With fp64 tables, fp64 products differ only by the rounding of angles, 2^-53 of 1e5.
TEST(RotaryTest, TablesOfFp64KeepDistancesOfFp64) {
  const at::Tensor q = Normal({1, 1, 1, 64}, 1), k = Normal({1, 1, 1, 64}, 2);
  const auto product = [&](int64_t q_position, int64_t k_position) {
    const auto turn = [](const at::Tensor& x, int64_t position) {
      return ApplyRotary(x, MakeRotaryTable(Positions(1, 1, position), 64, 10000, at::kDouble));
    };
    return (turn(q, q_position) * turn(k, k_position)).sum().item<double>();
  };
  for (const int64_t shift : {1, 1000, 100'000})
    EXPECT_NEAR(product(7, 3), product(7 + shift, 3 + shift), 1e-9) << shift;
}

TEST(RotaryTest, OwnFrequenciesAndFactor) {
  const at::Tensor positions = Positions(2, 5, 3);
  const RotaryTable usual = MakeRotaryTable(positions, 8, 100),
                    same = MakeRotaryTable(positions, RotaryFrequencies(8, 100));
  EXPECT_TRUE(test::BitEqual(same.cos, usual.cos));
  EXPECT_TRUE(test::BitEqual(same.sin, usual.sin));
  const RotaryTable twice = MakeRotaryTable(positions, RotaryFrequencies(8, 100), 2);
  EXPECT_TRUE(test::BitEqual(twice.cos, usual.cos * 2));
  const std::vector<double> still(4, 0.0);
  EXPECT_TRUE(test::BitEqual(MakeRotaryTable(positions, still).sin, usual.sin * 0));
}

// A table of r/2 pairs rotates the first r channels as heads of width r, and copies the others.
// Tables of an odd r have one pair more.
TEST(RotaryTest, PartsOfAHead) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const auto& [dim, rotated] : {std::pair(12, 4), {7, 6}, {64, 16}, {8, 8}, {8, 3}}) {
      const int64_t width = (rotated + 1) / 2 * 2;
      const RotaryTable table =
          MakeRotaryTable(Positions(2, 9, 3), RotaryFrequencies(rotated, 100));
      const at::Tensor x = Normal({2, 9, 3, dim}, 1, dtype).requires_grad_();
      const at::Tensor y = ApplyRotary(x, table);
      const at::Tensor first = ApplyRotary(x.narrow(3, 0, width).contiguous(), table);
      const at::Tensor want = at::cat({first, x.narrow(3, width, dim - width)}, 3);
      EXPECT_TRUE(test::BitEqual(y, want)) << rotated << " of " << dim;
      const at::Tensor dy = Normal({2, 9, 3, dim}, 2, dtype);
      EXPECT_TRUE(test::BitEqual(torch::autograd::grad({y}, {x}, {dy})[0],
                                 torch::autograd::grad({want}, {x}, {dy})[0]))
          << rotated << " of " << dim;
    }
  }
  EXPECT_EQ(RotaryFrequencies(3, 100), (std::vector<double>{1, std::pow(100.0, -2.0 / 3)}));
}

// Several tensors in one pass, with different numbers of heads and as columns of one product, give
// the bits of separate passes.
TEST(RotaryTest, PairsRotateAsSeparateTensors) {
  const ops::RotaryTable table = ops::MakeRotaryTable(Positions(2, 9, 3), 12, 10000);
  const at::ScalarType dtypes[] = {at::kDouble, at::kFloat, at::kBFloat16};
  for (int64_t i = 0; i < 6; ++i) {
    const at::ScalarType dtype = dtypes[i / 2];
    SCOPED_TRACE(dtype);
    // All tokens of a row, or some of them, with gaps between the rows.
    const at::Tensor product = Normal({2, 9 + i % 2, 7 * 12}, 1, dtype).narrow(1, 0, 9);
    const at::Tensor q = product.narrow(2, 12, 36).view({2, 9, 3, 12}).detach().requires_grad_(),
                     k = product.narrow(2, 48, 24).view({2, 9, 2, 12}).detach().requires_grad_();
    const auto [turned_q, turned_k] = ApplyRotary(q, k, table);
    EXPECT_TRUE(test::BitEqual(turned_q, ApplyRotary(q.contiguous(), table)));
    EXPECT_TRUE(test::BitEqual(turned_k, ApplyRotary(k.contiguous(), table)));
    const at::Tensor dq = Normal({2, 3, 9, 12}, 2, dtype).transpose(1, 2),
                     dk = Normal({2, 9, 2, 12}, 3, dtype);
    const auto pair = torch::autograd::grad({turned_q, turned_k}, {q, k}, {dq, dk});
    EXPECT_TRUE(
        test::BitEqual(pair[0], torch::autograd::grad({ApplyRotary(q, table)}, {q}, {dq})[0]));
    EXPECT_TRUE(
        test::BitEqual(pair[1], torch::autograd::grad({ApplyRotary(k, table)}, {k}, {dk})[0]));
  }
}

TEST(RotaryTest, NoTokens) {
  for (const auto& [batch, seq_len] : {std::pair(2, 0), {0, 5}}) {
    const RotaryTable table = MakeRotaryTable(Positions(batch, seq_len, 3), 6, 10000);
    EXPECT_EQ(ApplyRotary(Normal({batch, seq_len, 2, 6}, 1, at::kFloat), table).numel(), 0);
  }
}

TEST(RotaryTest, StridedTables) {
  const RotaryTable table = MakeRotaryTable(Positions(2, 4, 2), 6, 10000);
  const RotaryTable strided = {.cos = table.cos.t().contiguous().t(),
                               .sin = table.sin.t().contiguous().t(),
                               .rows = table.rows.t().contiguous().t()};
  const at::Tensor x = Normal({2, 4, 2, 6}, 1, at::kFloat);
  EXPECT_TRUE(test::BitEqual(ApplyRotary(x, strided), ApplyRotary(x, table)));
}

TEST(RotaryTest, BadInput) {
  const RotaryTable table = MakeRotaryTable(Positions(2, 4, 2), 6, 10000);
  const at::Tensor x = Normal({2, 4, 2, 6}, 1, at::kFloat);
  const auto with = [&](const auto& change) {
    RotaryTable changed = table;
    change(changed);
    return [changed, &x] { ApplyRotary(x, changed); };
  };
  const ExitCode internal = ExitCode::kInternal, usage = ExitCode::kUsage;
  EXPECT_HL_ERROR(
      with([](auto& t) { t.cos = t.cos.narrow(1, 0, 2); })(), internal,
      "ApplyRotary to x [2, 4, 2, 6] fp32 on cpu with cos [4, 2] fp32 on cpu, sin [4, 3]",
      "rows [2, 4] int64 on cpu", "cos and sin [R, r/2] with r <= d, fp32");
  EXPECT_HL_ERROR(with([](auto& t) { t.sin = t.sin.narrow(0, 0, 3); })(), internal, "sin [3, 3]");
  EXPECT_HL_ERROR(with([](auto& t) { t.cos = t.cos.to(at::kBFloat16); })(), internal,
                  "cos [4, 3] bf16");
  EXPECT_HL_ERROR(with([](auto& t) { t.cos = t.cos.to(at::kDouble); })(), internal,
                  "cos [4, 3] fp64", "or fp64 for x of fp64");
  EXPECT_HL_ERROR(with([](auto& t) { t.sin = t.sin.to(at::kMeta); })(), internal, "fp32 on meta");
  EXPECT_HL_ERROR(with([](auto& t) { t.rows = t.rows.narrow(0, 0, 1); })(), internal,
                  "rows [1, 4]");
  EXPECT_HL_ERROR(with([](auto& t) { t.rows = t.rows.to(at::kInt); })(), internal, "int32");
  EXPECT_HL_ERROR(with([](auto& t) { t.rows = t.rows + 1; })(), internal,
                  "a token's row is 4 in a table of 4 rows");
  EXPECT_HL_ERROR(with([](auto& t) { t.rows = t.rows - 1; })(), internal, "a token's row is -1");
  EXPECT_HL_ERROR(ApplyRotary(x.narrow(3, 0, 5), table), internal, "r <= d");
  EXPECT_HL_ERROR(ApplyRotary(x.to(at::kHalf), table), usage,
                  "ApplyRotary does not support fp16. Use fp32, bf16 or fp64.");
  EXPECT_HL_ERROR(ApplyRotary(x, x.narrow(1, 0, 3), table), internal,
                  "ApplyRotary to q [2, 4, 2, 6] fp32 on cpu and k [2, 3, 2, 6] fp32 on cpu",
                  "[B, T, H, d] and [B, T, Hk, d] of one dtype and device.");
  EXPECT_HL_ERROR(ApplyRotary(x, x.to(at::kBFloat16), table), internal, "k [2, 4, 2, 6] bf16");
  EXPECT_HL_ERROR(ApplyRotary(x, x.narrow(3, 0, 4), table), internal, "k [2, 4, 2, 4] fp32");
  EXPECT_HL_ERROR(MakeRotaryTable(Positions(2, 4, 2), 5, 10000), internal, "heads of 5",
                  "even head_dim");
  EXPECT_HL_ERROR(MakeRotaryTable(Positions(2, 4, 2).to(at::kInt), 6, 10000), internal,
                  "positions [2, 4] int32 on cpu");
}

TEST(RotaryTablesTest, GivesWhatIsMadeOfItsArgumentsAndOnce) {
  RotaryTables tables;
  const at::Tensor near = Positions(2, 4, 0), far = Positions(2, 4, 90);
  const std::vector<double> frequencies = {1, 0.25, 0.125}, others = {1, 0.25, 0.5};
  const auto equal = [](const RotaryTable& a, const RotaryTable& b) {
    return a.cos.equal(b.cos) && a.sin.equal(b.sin) && a.rows.equal(b.rows);
  };
  const RotaryTable first = tables.Of(near, 6, 100);
  EXPECT_TRUE(equal(first, MakeRotaryTable(near, 6, 100)));
  EXPECT_TRUE(tables.Of(near, 6, 100).cos.is_same(first.cos));
  EXPECT_TRUE(equal(tables.Of(near, 6, 200), MakeRotaryTable(near, 6, 200)));
  const RotaryTable wide = tables.Of(near, 6, 100, at::kDouble);
  EXPECT_TRUE(equal(wide, MakeRotaryTable(near, 6, 100, at::kDouble)));
  EXPECT_EQ(tables.Of(near, frequencies, 1, at::kDouble).sin.scalar_type(), at::kDouble);
  EXPECT_TRUE(equal(tables.Of(near, 8, 100), MakeRotaryTable(near, 8, 100)));
  EXPECT_TRUE(equal(tables.Of(far, 6, 100), MakeRotaryTable(far, 6, 100)));
  const RotaryTable scaled = tables.Of(near, frequencies, 2);
  EXPECT_TRUE(equal(scaled, MakeRotaryTable(near, frequencies, 2)));
  EXPECT_TRUE(tables.Of(near, frequencies, 2).sin.is_same(scaled.sin));
  EXPECT_TRUE(equal(tables.Of(near, frequencies), MakeRotaryTable(near, frequencies)));
  EXPECT_TRUE(equal(tables.Of(near, others, 2), MakeRotaryTable(near, others, 2)));
  EXPECT_HL_ERROR(tables.Of(near, 5, 100), ExitCode::kInternal, "even head_dim");
}

}  // namespace
}  // namespace halflife::ops
