// Linear layers in FP8: the products of rounded operands bit for bit, their error, their scales,
// and the copies of weights.
#include "ops/linear/float8_linear.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <optional>

#include "ops/gradient_check.h"
#include "ops/linear/linear.h"
#include "ops/recording_sink.h"
#include "ops/torch/side_by_side.h"

namespace halflife::ops {
namespace {

using test::Normal;
using Tensors = std::vector<at::Tensor>;

// Rounds a number to e4m3 by its quantum: 2^-3 of its power of two, and at least 2^-9.
double RoundedToE4m3(double x) {
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(x == 0 ? 1 : x), -6) - 3);
  return std::nearbyint(x / quantum) * quantum;
}

// Returns the rows of x [rows, width] rounded to e4m3, in fp64.
at::Tensor RoundedRows(const at::Tensor& x) {
  at::Tensor rounded = x.detach().to(at::kDouble).contiguous().clone();
  const at::Tensor largest = std::get<0>(rounded.abs().max(1));
  for (int64_t row = 0; row < x.size(0); ++row) {
    const auto of_row = largest[row].item<double>();
    const double scale =
        of_row == 0 ? 1 : std::ldexp(1.0, static_cast<int>(std::floor(std::log2(448 / of_row))));
    double* const values = rounded.mutable_data_ptr<double>() + row * x.size(1);
    for (int64_t i = 0; i < x.size(1); ++i) values[i] = RoundedToE4m3(values[i] * scale) / scale;
  }
  return rounded;
}

// Draws numbers of both signs in [1/4, 1). They stay multiples of 2^-5 when they are rounded, so
// that sums of up to 2^13 products are exact in fp32, in any order.
at::Tensor NarrowRange(std::vector<int64_t> shape, uint64_t seed) {
  const at::Tensor u = test::Uniform(shape, seed) * 1.5 - 0.75;
  return (u + at::where(u < 0, -0.25, 0.25)).to(at::kBFloat16);
}

struct Float8Layer {
  at::Tensor x, dy;
  Tensors weights;  // adjacent in memory, unless there is a gap
  std::shared_ptr<Float8Weights> float8 = std::make_shared<Float8Weights>(/*keeps=*/true);

  struct Sizes {
    int64_t tokens, in;
    std::vector<int64_t> outs;
    int64_t gap = 0;  // rows between the weights
  };
  template <typename Make>
  Float8Layer(const Sizes& sizes, const Make& make) {
    int64_t out = 0;
    for (const int64_t width : sizes.outs) out += width;
    const Tensors values = make({out, sizes.in}, 1).split_with_sizes(sizes.outs, 0);
    const auto count = static_cast<int64_t>(values.size());
    const at::Tensor memory = at::zeros({out + count * sizes.gap, sizes.in}, values[0].options());
    int64_t begin = 0;
    for (const at::Tensor& value : values) {
      const at::Tensor weight = memory.narrow(0, begin, value.size(0)).copy_(value);
      weights.push_back(weight.detach().requires_grad_());
      begin += value.size(0) + sizes.gap;
    }
    x = make({sizes.tokens, sizes.in}, 2).requires_grad_();
    dy = make({sizes.tokens, out}, 3);
    Mark(float8);
  }
  ~Float8Layer() { Mark(nullptr); }
  Float8Layer(const Float8Layer&) = delete;
  Float8Layer& operator=(const Float8Layer&) = delete;

  void Mark(const std::shared_ptr<Float8Weights>& as) const {
    for (const at::Tensor& weight : weights) SetFloat8Weights(weight, as);
  }
  struct Results {
    at::Tensor y, dx, dweight;
  };
  Results Run() {
    x.mutable_grad() = at::Tensor();
    Tensors dweights;
    const at::Tensor y = at::cat(SharedInputLinear(x, weights), -1);
    y.backward(dy);
    for (const at::Tensor& weight : weights) {
      dweights.push_back(weight.grad());
      weight.mutable_grad() = at::Tensor();
    }
    return {.y = y.detach(), .dx = x.grad(), .dweight = at::cat(dweights, 0)};
  }
  at::Tensor Weight() const { return at::cat(weights, 0).detach(); }
};

// Returns the gradient of x: one rounded product per weight, each of which has scales of its own,
// added in bf16.
at::Tensor RoundedInputGradient(const Float8Layer& layer) {
  at::Tensor dx;
  int64_t column = 0;
  for (const at::Tensor& weight : layer.weights) {
    const at::Tensor dy = RoundedRows(layer.dy.narrow(1, column, weight.size(0))),
                     rows = RoundedRows(weight.t()),
                     product = dy.matmul(rows.t()).to(at::kFloat).to(at::kBFloat16);
    dx = dx.defined() ? dx + product : product;
    column += weight.size(0);
  }
  return dx;
}

const auto kNormal = [](std::vector<int64_t> shape, uint64_t seed) {
  return Normal(std::move(shape), seed, at::kBFloat16);
};

TEST(Float8LinearTest, OperandsAreRoundedRows) {
  const at::Tensor x = Normal({40, 96}, 1, at::kBFloat16) * 3;
  EXPECT_TRUE(test::BitEqual(ToFloat8(x).values.to(at::kDouble), RoundedRows(x)));
  // LibTorch rounds numbers below 448 alike.
  const at::Tensor plain = x.clamp(-400, 400).to(at::kFloat8_e4m3fn).to(at::kDouble);
  const at::Tensor whole = at::cat({x, at::full({40, 1}, 400, x.options())}, 1);  // scale 1
  EXPECT_TRUE(test::BitEqual(ToFloat8(whole).values.narrow(1, 0, 96).to(at::kDouble), plain));
}

// Sums are exact, so forward and dx are the correctly rounded results of the rounded operands, bit
// for bit, for one weight or several. Weight gradients are those of a bf16 layer.
TEST(Float8LinearTest, ProductsAreExactlyThoseOfRoundedOperands) {
  for (const int64_t tokens : {5, 70, 600})
    for (const std::vector<int64_t>& outs :
         {std::vector<int64_t>{48}, std::vector<int64_t>{16, 64, 32}})
      for (const bool join : {false, true}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << outs.size() << " weights, "
                                        << (join ? "joined" : "apart"));
        std::optional<JoinedProductsEverywhere> joined;
        if (join) joined.emplace();
        Float8Layer layer({.tokens = tokens, .in = 96, .outs = outs}, NarrowRange);
        const Float8Layer::Results got = layer.Run();
        const at::Tensor x = RoundedRows(layer.x), w = RoundedRows(layer.Weight());
        EXPECT_TRUE(test::BitEqual(got.y, x.matmul(w.t()).to(at::kFloat).to(at::kBFloat16)));
        EXPECT_TRUE(test::BitEqual(got.dx, RoundedInputGradient(layer)));
        layer.Mark(nullptr);
        EXPECT_TRUE(test::BitEqual(got.dweight, layer.Run().dweight));
      }
}

// The padding between buckets of the arena can separate the projections of a layer. The gradient of
// the second one is so small that e4m3 would lose it with the scale of the first.
TEST(Float8LinearTest, AdjacencyInMemoryChangesNoBit) {
  const auto make = [](std::vector<int64_t> shape, uint64_t seed) {
    at::Tensor x = NarrowRange(std::move(shape), seed);
    if (seed == 3) x.narrow(1, 16, 64).mul_(0x1p-20);
    return x;
  };
  const auto run = [&](int64_t gap) {
    return Float8Layer({.tokens = 70, .in = 96, .outs = {16, 64, 32}, .gap = gap}, make).Run();
  };
  const Float8Layer::Results apart = run(64);
  for (const bool join : {false, true})
    for (const int64_t gap : {0, 64}) {
      SCOPED_TRACE(testing::Message() << (join ? "joined" : "apart") << ", gap " << gap);
      std::optional<JoinedProductsEverywhere> joined;
      if (join) joined.emplace();
      const Float8Layer::Results got = run(gap);
      EXPECT_TRUE(test::BitEqual(got.y, apart.y));
      EXPECT_TRUE(test::BitEqual(got.dx, apart.dx));
      EXPECT_TRUE(test::BitEqual(got.dweight, apart.dweight));
    }
}

// Each operand has a relative error of 2.6e-2, so a product has 3.7e-2.
TEST(Float8LinearTest, TheErrorIsThatOfTwoRoundings) {
  Float8Layer layer({.tokens = 256, .in = 1024, .outs = {512}}, kNormal);
  const Float8Layer::Results got = layer.Run();
  const at::Tensor x = layer.x.detach().to(at::kDouble), w = layer.Weight().to(at::kDouble);
  const double forward = test::MeanError(got.y, x.matmul(w.t())),
               backward = test::MeanError(got.dx, layer.dy.to(at::kDouble).matmul(w));
  EXPECT_GT(forward, 3.0e-2);
  EXPECT_LT(forward, 4.5e-2);
  EXPECT_GT(backward, 3.0e-2);
  EXPECT_LT(backward, 4.5e-2);
}

TEST(Float8LinearTest, ScaledRowsGiveScaledResultsInBits) {
  Float8Layer layer({.tokens = 70, .in = 64, .outs = {32}}, kNormal),
      scaled({.tokens = 70, .in = 64, .outs = {32}}, kNormal);
  const at::Tensor factors = at::pow(2.0, at::arange(-35, 35)).unsqueeze(1).to(at::kBFloat16);
  const c10::AutoGradMode no_grad(false);
  scaled.x.mul_(factors), scaled.dy.mul_(factors);
  const c10::AutoGradMode grad(true);
  const Float8Layer::Results one = layer.Run(), other = scaled.Run();
  EXPECT_TRUE(test::BitEqual(other.y, one.y * factors));
  EXPECT_TRUE(test::BitEqual(other.dx, one.dx * factors));
}

// A NaN or an infinity makes its row of the result NaN, and no other.
TEST(Float8LinearTest, BadRowsAreSeen) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    Float8Layer layer({.tokens = 70, .in = 64, .outs = {32, 16}}, kNormal);
    const Float8Layer::Results want = layer.Run();
    {
      const c10::AutoGradMode no_grad(false);
      layer.x[3][5].fill_(bad);
      layer.dy[7][40].fill_(bad);
    }
    const Float8Layer::Results got = layer.Run();
    EXPECT_TRUE(got.y[3].isnan().all().item<bool>());
    EXPECT_TRUE(got.dx[7].isnan().all().item<bool>());
    EXPECT_EQ(got.y.isnan().sum().item<int64_t>(), 48);
    EXPECT_EQ(got.dx.isnan().sum().item<int64_t>(), 64);
    EXPECT_TRUE(test::BitEqual(got.y[4], want.y[4]));
    EXPECT_TRUE(got.dweight.isnan().any().item<bool>());
  }
}

// Next to a weight without FP8, and with gradients in sinks.
TEST(Float8LinearTest, WeightsOfBothKindsShareAnInput) {
  Float8Layer layer({.tokens = 300, .in = 96, .outs = {32, 48}}, NarrowRange);
  SetFloat8Weights(layer.weights[1], nullptr);
  std::vector<std::unique_ptr<test::RecordingSink::Log>> logs;
  for (const at::Tensor& weight : layer.weights) {
    logs.push_back(std::make_unique<test::RecordingSink::Log>(
        at::zeros(weight.sizes(), at::TensorOptions(at::kFloat))));
    logs.back()->Attach(weight);
  }
  const Tensors y = SharedInputLinear(layer.x, layer.weights);
  at::cat(y, -1).backward(layer.dy);
  const at::Tensor x = layer.x.detach().to(at::kDouble);
  const auto want = [](const at::Tensor& wide) { return wide.to(at::kFloat).to(at::kBFloat16); };
  const at::Tensor w0 = layer.weights[0].detach(), w1 = layer.weights[1].detach().to(at::kDouble);
  EXPECT_TRUE(
      test::BitEqual(y[0].detach(), want(RoundedRows(layer.x).matmul(RoundedRows(w0).t()))));
  EXPECT_TRUE(test::Close(y[1], x.matmul(w1.t()), 0x1p-8));
  const at::Tensor dy0 = layer.dy.narrow(1, 0, 32), dy1 = layer.dy.narrow(1, 32, 48);
  const at::Tensor dx =
      RoundedRows(dy0).matmul(RoundedRows(w0.t()).t()) + dy1.to(at::kDouble).matmul(w1);
  EXPECT_TRUE(test::Close(layer.x.grad(), dx, 3 * 0x1p-8));
  EXPECT_TRUE(test::Close(logs[0]->sum, dy0.to(at::kDouble).t().matmul(x), 0x1p-8));
  EXPECT_TRUE(test::Close(logs[1]->sum, dy1.to(at::kDouble).t().matmul(x), 0x1p-8));
  EXPECT_EQ(logs[0]->written, 1);
}

// Copies are made once an update, in the same memory, unless every use makes its own.
TEST(Float8LinearTest, CopiesOfWeightsFollowUpdates) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor weight = kNormal({32, 64}, 1);
  const at::Tensor other = kNormal({32, 64}, 2);
  Float8Weights kept(/*keeps=*/true), fresh(/*keeps=*/false);
  const at::Tensor rows = kept.Rows(weight).values, columns = kept.Columns(weight).values;
  EXPECT_EQ(columns.sizes(), at::IntArrayRef({64, 32}));
  const at::Tensor before = rows.clone();
  weight.copy_(other);
  EXPECT_TRUE(test::BitEqual(kept.Rows(weight).values, before));
  EXPECT_TRUE(test::BitEqual(fresh.Rows(weight).values, ToFloat8(other).values));
  kept.Invalidate();
  EXPECT_TRUE(test::BitEqual(kept.Rows(weight).values, ToFloat8(other).values));
  EXPECT_EQ(kept.Rows(weight).values.const_data_ptr(), rows.const_data_ptr());
  kept.Refresh();
  EXPECT_TRUE(test::BitEqual(columns, ToFloat8(other.t().contiguous()).values));
}

// Views and detached tensors are other tensors: a weight without the mark is multiplied in bf16.
TEST(Float8LinearTest, OnlyMarkedWeightsAreMultipliedInFloat8) {
  Float8Layer layer({.tokens = 70, .in = 64, .outs = {32}}, kNormal);
  const at::Tensor in_float8 = Linear(layer.x, layer.weights[0]),
                   by_view = Linear(layer.x, layer.weights[0].view_as(layer.weights[0]));
  layer.Mark(nullptr);
  const at::Tensor in_bf16 = Linear(layer.x, layer.weights[0]);
  EXPECT_TRUE(test::BitEqual(by_view, in_bf16));
  EXPECT_FALSE(test::BitEqual(in_float8, in_bf16));
}

}  // namespace
}  // namespace halflife::ops
