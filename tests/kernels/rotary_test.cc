#include "kernels/rotary/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::kernels {
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
      // angles are formed in fp32
      EXPECT_NEAR(y[0][t][1][j].item<double>(), a * std::cos(angle) - b * std::sin(angle), 3e-6);
      EXPECT_NEAR(y[0][t][1][j + kDim / 2].item<double>(),
                  b * std::cos(angle) + a * std::sin(angle), 3e-6);
    }
  }
}

TEST(RotaryTest, ProductsDependOnDistanceOnly) {
  const at::Tensor q = Normal({1, 1, 1, 64}, 1), k = Normal({1, 1, 1, 64}, 2);
  const auto product = [&](int64_t q_position, int64_t k_position) {
    const at::Tensor a = ApplyRotary(q, MakeRotaryTable(Positions(1, 1, q_position), 64, 10000));
    const at::Tensor b = ApplyRotary(k, MakeRotaryTable(Positions(1, 1, k_position), 64, 10000));
    return (a * b).sum().item<double>();
  };
  // |q||k| is about 64; angles of up to 1000 rad carry 6e-5 of rounding in fp32
  EXPECT_NEAR(product(7, 3), product(1004, 1000), 64 * 6e-5);
  EXPECT_GT(std::abs(product(7, 3) - product(7, 5)), 0.1);
}

// Products of a query and a key of one head, encoded by xPos: fp64 rows and tables rounded to fp32.
double XposProduct(const at::Tensor& q, const at::Tensor& k, int64_t m, int64_t n,
                   const XposConfig& config) {
  const int64_t dim = q.size(3);
  const at::Tensor a = ApplyRotary(q, MakeXposTables(Positions(1, 1, m), dim, config).q);
  const at::Tensor b = ApplyRotary(k, MakeXposTables(Positions(1, 1, n), dim, config).k);
  return (a * b).sum().item<double>();
}

at::Tensor Head(std::vector<double> values) {
  return at::tensor(values, at::kDouble).view({1, 1, 1, static_cast<int64_t>(values.size())});
}

// Heads of 4 channels with the paper's pairs (1, 2), (3, 4) of q and (.5, -1), (2, .25) of k,
// worked out beside the code.
TEST(XposTest, GoldenValues) {
  const at::Tensor q = Head({1, 3, 2, 4}), k = Head({0.5, 2, -1, 0.25});
  const auto tables = [](int64_t position) {
    return MakeXposTables(Positions(1, 1, position), 4, {});
  };
  // products of rows of up to 5.5 each, tables to 2^-24
  constexpr double kTolerance = 4 * 5.5 * 5.5 * 0x1p-24;
  EXPECT_TRUE(test::Close(ApplyRotary(q, tables(7).q),
                          Head({-0.550559944, 2.696543353, 2.128029112, 4.174737957}), 1e-7));
  EXPECT_TRUE(test::Close(ApplyRotary(k, tables(3).k),
                          Head({-0.356483393, 1.996763856, 1.068366031, 0.310681781}), 1e-7));
  EXPECT_NEAR(XposProduct(q, k, 7, 3, {}), 9.151154823, kTolerance);
  EXPECT_NEAR(XposProduct(q, k, 1000, 0, {}), -1.030211620, kTolerance);
  EXPECT_NEAR(XposProduct(q, k, 12, 12, {}), 5.5, kTolerance);
}

TEST(XposTest, ProductsAreTheClosedForm) {
  constexpr int64_t kDim = 64;
  const at::Tensor q = Normal({1, 1, 1, kDim}, 1), k = Normal({1, 1, 1, kDim}, 2);
  const auto *const a = q.const_data_ptr<double>(), *const b = k.const_data_ptr<double>();
  for (const auto& [m, n] : {std::pair(0, 0), {5, 2}, {700, 1}, {3000, 2999}}) {
    double want = 0;
    for (int64_t j = 0; j < kDim / 2; ++j) {
      const double part = 2.0 * static_cast<double>(j) / kDim, distance = m - n;
      const double angle = distance * std::pow(10000.0, -part);
      const double decay = std::exp(distance * std::log((part + 0.4) / 1.4) / 512);
      const int64_t other = j + kDim / 2;
      want += decay * ((a[j] * b[j] + a[other] * b[other]) * std::cos(angle) +
                       (a[j] * b[other] - a[other] * b[j]) * std::sin(angle));
    }
    // two tables, each rounded by 2^-24; the terms' sizes add up to at most |q| |k|, some 64
    EXPECT_NEAR(XposProduct(q, k, m, n, {.centre = 1500}), want, 64 * 4 * 0x1p-24) << m << " " << n;
  }
}

TEST(XposTest, ProductsDependOnDistanceOnly) {
  const at::Tensor q = Normal({1, 1, 1, 64}, 1), k = Normal({1, 1, 1, 64}, 2);
  const double near = XposProduct(q, k, 40, 3, {});
  for (const int64_t shift : {1, 1000, 100000}) {
    EXPECT_NEAR(XposProduct(q, k, 40 + shift, 3 + shift, {.centre = static_cast<double>(shift)}),
                near, 64 * 4 * 0x1p-24)
        << shift;
    EXPECT_NEAR(XposProduct(q, k, 40, 3, {.centre = static_cast<double>(shift % 10000)}), near,
                64 * 4 * 0x1p-24)
        << shift;
  }
  EXPECT_GT(std::abs(near - XposProduct(q, k, 41, 3, {})), 0.1);
}

// The faster a pair turns, the faster it decays: the first by (2/7)^(distance/512).
TEST(XposTest, ScalesPairs) {
  constexpr int64_t kDim = 8;
  const at::Tensor x = Normal({1, 1, 1, kDim}, 1);
  const XposTables tables = MakeXposTables(Positions(1, 1, 612), kDim, {.centre = 100});
  const at::Tensor q = ApplyRotary(x, tables.q), k = ApplyRotary(x, tables.k);
  const auto size = [&](const at::Tensor& y, int64_t j) {
    return std::hypot(y[0][0][0][j].item<double>(), y[0][0][0][j + kDim / 2].item<double>());
  };
  for (int64_t j = 0; j < kDim / 2; ++j) {
    const double scale = (2.0 * static_cast<double>(j) / kDim + 0.4) / 1.4;
    EXPECT_NEAR(size(q, j) / size(x, j), scale, 4 * 0x1p-24) << j;
    EXPECT_NEAR(size(k, j) / size(x, j) * scale, 1, 4 * 0x1p-24) << j;
  }
}

TEST(XposTest, WithoutDecayIsRotary) {
  const at::Tensor x = Normal({1, 5, 2, 8}, 1);
  const RotaryTable plain = MakeRotaryTable(Positions(1, 5, 3), 8, 100);
  const XposTables tables =
      MakeXposTables(Positions(1, 5, 3), 8, {.base = 100, .scale_base = 1e300, .centre = 50});
  EXPECT_TRUE(test::BitEqual(tables.q.cos, tables.k.cos));
  // rotary's angles are formed in fp32
  EXPECT_TRUE(test::Close(ApplyRotary(x, tables.q), ApplyRotary(x, plain), 3e-6));
}

TEST(XposTest, PositionsRestartWithDocuments) {
  const at::Tensor x = Normal({1, 3, 2, 8}, 1, at::kFloat), twice = at::cat({x, x}, 1);
  const at::Tensor positions = Positions(1, 3, 0);
  const XposTables one = MakeXposTables(positions, 8, {}),
                   two = MakeXposTables(at::cat({positions, positions}, 1), 8, {});
  const at::Tensor want = ApplyRotary(x, one.k), got = ApplyRotary(twice, two.k);
  EXPECT_TRUE(test::BitEqual(got.narrow(1, 0, 3), want));
  EXPECT_TRUE(test::BitEqual(got.narrow(1, 3, 3), want));
}

// The transpose turns back and keeps the scale: in fp64 against differences, the fused loops
// against fp64.
TEST(XposTest, Gradients) {
  const XposTables tables = MakeXposTables(Positions(2, 5, 400), 12, {.centre = 0});
  for (const RotaryTable& table : {tables.q, tables.k}) {
    const auto apply = [&](const auto& in) { return ApplyRotary(in[0], table); };
    const at::Tensor weight = Normal({2, 5, 3, 12}, 2);
    test::ExpectFiniteDifferences([&](const auto& in) { return (apply(in) * weight).sum(); },
                                  {Normal({2, 5, 3, 12}, 1)});
    test::ExpectFloatMatchesDouble(apply, {Normal({2, 5, 3, 12}, 1)}, 2e-6);
    test::ExpectBf16MatchesDouble(apply, {Normal({2, 5, 3, 12}, 1)});
  }
}

TEST(XposTest, BadInput) {
  EXPECT_HL_ERROR(MakeXposTables(Positions(1, 5, 0), 5, {}), ExitCode::kInternal, "heads of 5",
                  "even head_dim");
  EXPECT_HL_ERROR(MakeXposTables(Positions(1, 5, 0), 4, {.gamma = 0}), ExitCode::kInternal,
                  "gamma 0");
  MakeXposTables(Positions(1, 1, 16347), 4, {});
  MakeXposTables(Positions(1, 1, 32000), 4, {.centre = 16000});
  EXPECT_HL_ERROR(MakeXposTables(Positions(1, 1, 16349), 4, {}), ExitCode::kUsage,
                  "xPos of positions 16349 to 16349 with centre 0 scales by e^40",
                  "at most 16347 tokens off the centre would work");
  EXPECT_HL_ERROR(MakeXposTables(Positions(1, 3, 0), 4, {.centre = 20000}), ExitCode::kUsage,
                  "scales by e^48");
  const XposTables none = MakeXposTables(Positions(2, 0, 3), 6, {});
  EXPECT_EQ(ApplyRotary(Normal({2, 0, 2, 6}, 1, at::kFloat), none.q).numel(), 0);
}

TEST(RotaryTest, FusedLoopsMatchFp64) {
  at::Tensor positions = Positions(2, 9, 0).clone();
  positions[1].add_(5);  // rows may differ
  const RotaryTable table = MakeRotaryTable(positions, 12, 10000);
  test::ExpectFloatMatchesDouble([&](const auto& in) { return ApplyRotary(in[0], table); },
                                 {Normal({2, 9, 3, 12}, 1)}, 5e-7);
}

TEST(RotaryTest, Bf16IsRoundedOnce) {
  for (const int64_t dim : {2, 12, 128}) {
    SCOPED_TRACE(dim);
    const RotaryTable table = MakeRotaryTable(Positions(2, 9, 3), dim, 10000);
    test::ExpectBf16MatchesDouble([&](const auto& in) { return ApplyRotary(in[0], table); },
                                  {Normal({2, 9, 3, dim}, 1)});
  }
}

TEST(RotaryTest, GradientTurnsBack) {
  const RotaryTable table = MakeRotaryTable(Positions(1, 4, 2), 6, 10000);
  const at::Tensor x = Normal({1, 4, 2, 6}, 1, at::kFloat).requires_grad_();
  const at::Tensor y = ApplyRotary(x, table);
  const auto grads = torch::autograd::grad({y}, {x}, {y.detach()});
  EXPECT_TRUE(test::Close(grads[0], x, 5e-7));  // a rotation's transpose is its inverse
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
      "rows [2, 4] int64 on cpu", "cos and sin [R, d/2] fp32");
  EXPECT_HL_ERROR(with([](auto& t) { t.sin = t.sin.narrow(0, 0, 3); })(), internal, "sin [3, 3]");
  EXPECT_HL_ERROR(with([](auto& t) { t.cos = t.cos.to(at::kBFloat16); })(), internal,
                  "cos [4, 3] bf16");
  EXPECT_HL_ERROR(with([](auto& t) { t.sin = t.sin.to(at::kMeta); })(), internal, "fp32 on meta");
  EXPECT_HL_ERROR(with([](auto& t) { t.rows = t.rows.narrow(0, 0, 1); })(), internal,
                  "rows [1, 4]");
  EXPECT_HL_ERROR(with([](auto& t) { t.rows = t.rows.to(at::kInt); })(), internal, "int32");
  EXPECT_HL_ERROR(with([](auto& t) { t.rows = t.rows + 1; })(), internal,
                  "a token's row is 4, but the table has 4");
  EXPECT_HL_ERROR(with([](auto& t) { t.rows = t.rows - 1; })(), internal, "a token's row is -1");
  EXPECT_HL_ERROR(ApplyRotary(x.narrow(3, 0, 5), table), internal, "d even");
  EXPECT_HL_ERROR(ApplyRotary(x.to(at::kHalf), table), usage,
                  "ApplyRotary of fp16; fp32, bf16 or fp64 would work");
  EXPECT_HL_ERROR(MakeRotaryTable(Positions(2, 4, 2), 5, 10000), internal, "heads of 5",
                  "even head_dim");
  EXPECT_HL_ERROR(MakeRotaryTable(Positions(2, 4, 2).to(at::kInt), 6, 10000), internal,
                  "positions [2, 4] int32 on cpu");
}

}  // namespace
}  // namespace halflife::kernels
