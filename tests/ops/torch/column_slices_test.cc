// Gradients of columns of one matrix: they are adjacent, share no memory, and have the values of
// separate tensors.
#include "ops/torch/column_slices.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>
#include <vector>

#include "ops/convolution/short_conv.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/linear/linear.h"
#include "ops/random_tensors.h"
#include "ops/rows/bias_map.h"
#include "ops/rows/delta_gates.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/rotary.h"
#include "ops/rows/swiglu.h"
#include "ops/scans/selective_scan.h"
#include "ops/softmax_attention/softmax_attention.h"
#include "ops/torch/host_waits.h"
#include "ops/torch/side_by_side.h"

namespace halflife::ops {
namespace {

using test::Close;
using test::Normal;

bool AreOneMatrix(const at::Tensor& x, const at::Tensor& y) {
  return x.storage().is_alias_of(y.storage()) &&
         y.storage_offset() - x.storage_offset() == x.size(-1) && x.stride(0) == y.stride(0);
}

TEST(SharedMatrixTest, PartsAreAdjacentAndGivenOnce) {
  const auto columns = std::make_shared<ops::SharedMatrix>(std::vector<int64_t>{3, 2});
  const ops::ColumnSlice first = {.columns = columns, .part = 0},
                         second = {.columns = columns, .part = 1};
  const at::Tensor x = at::empty({4, 3}), y = at::empty({4, 2});
  const at::Tensor dy = second.EmptyLike(y), dx = first.EmptyLike(x);
  EXPECT_TRUE(AreOneMatrix(dx, dy));
  EXPECT_EQ(dx.sizes(), x.sizes());
  EXPECT_EQ(dx.stride(0), 5);
  // Two more passes, whose calls alternate.
  const at::Tensor again = first.EmptyLike(x), third = first.EmptyLike(x);
  EXPECT_FALSE(again.storage().is_alias_of(dx.storage()));
  EXPECT_FALSE(again.storage().is_alias_of(third.storage()));
  EXPECT_TRUE(AreOneMatrix(again, second.EmptyLike(y)));
  EXPECT_TRUE(AreOneMatrix(third, second.EmptyLike(y)));
  // A different number of rows or dtype means a different matrix.
  const at::Tensor longer = first.EmptyLike(at::empty({7, 3}));
  EXPECT_FALSE(longer.storage().is_alias_of(second.EmptyLike(y).storage()));
  EXPECT_EQ(second.EmptyLike(y.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

// The columns of a row may be heads. Another width is not that of the part.
TEST(SharedMatrixTest, PartsOfHeads) {
  const auto columns = std::make_shared<ops::SharedMatrix>(std::vector<int64_t>{6, 4});
  const ops::ColumnSlice first = {.columns = columns, .part = 0},
                         second = {.columns = columns, .part = 1};
  const at::Tensor heads = first.EmptyLike(at::empty({2, 5, 3, 2})),
                   flat = second.EmptyLike(at::empty({2, 5, 4}));
  EXPECT_EQ(heads.sizes(), at::IntArrayRef({2, 5, 3, 2}));
  EXPECT_EQ(heads.strides(), at::IntArrayRef({50, 10, 2, 1}));
  EXPECT_TRUE(AreOneMatrix(heads.flatten(2).flatten(0, 1), flat.flatten(0, 1)));
  EXPECT_TRUE(first.EmptyLike(at::empty({2, 5, 3, 1})).is_contiguous());
  // One head has a dimension more than rows, and is in the same matrix.
  const at::Tensor head = first.EmptyLike(at::empty({2, 5, 1, 6})),
                   rows = second.EmptyLike(at::empty({2, 5, 4}));
  EXPECT_TRUE(AreOneMatrix(head.flatten(0, 2), rows.flatten(0, 1)));
}

TEST(SharedMatrixTest, WithoutColumnsMemoryIsDense) {
  const at::Tensor x = at::empty({4, 6}).narrow(1, 1, 3);
  EXPECT_TRUE(ColumnSlice().EmptyLike(x).is_contiguous());
}

// Sums of a few hundred products in another order. In bf16, results and intermediate values are
// rounded, too.
double ToleranceOf(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 3 * 0x1p-8 : dtype == at::kFloat ? 1e-5 : 1e-12;
}

// Reads columns of a product of x [2, 40, 24], or copies of them with separate gradients, and other
// weights. Returns its output.
using Reader = std::function<at::Tensor(const std::vector<LinearPart>& parts,
                                        const std::vector<at::Tensor>& weights)>;

// Expects that the reader's gradients by columns equal those by copies, except for the order of
// sums.
void ExpectSameGradients(const Reader& reader, const std::vector<int64_t>& widths,
                         const std::vector<at::Tensor>& weights) {
  int64_t width = 0;
  for (const int64_t one : widths) width += one;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const auto run = [&](bool columns) {
      std::optional<JoinedProductsEverywhere> joins;
      if (columns) joins.emplace();
      std::vector<at::Tensor> leaves = {Normal({2, 40, 24}, 1, dtype),
                                        Normal({width, 24}, 2, dtype) * 0.2};
      for (const at::Tensor& weight : weights) leaves.push_back(weight.clone());
      for (at::Tensor& leaf : leaves) leaf.requires_grad_();
      std::vector<LinearPart> parts = LinearInParts(leaves[0], leaves[1], widths);
      if (columns) {
        EXPECT_TRUE(AreOneMatrix(parts[0].y, parts[1].y));
        EXPECT_NE(parts[0].gradient.columns, nullptr);
      }
      const at::Tensor y = reader(parts, {leaves.begin() + 2, leaves.end()});
      std::vector<at::Tensor> results =
          torch::autograd::grad({y}, leaves, {Normal(y.sizes().vec(), 3, dtype)});
      results.push_back(y);
      return results;
    };
    const auto got = run(true), want = run(false);
    // In bf16 the gradients of columns and of copies are rounded before the products.
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(Close(got[i], want[i], ToleranceOf(dtype))) << i;
  }
}

TEST(SharedMatrixTest, ConvolutionAndGate) {
  ExpectSameGradients(
      [](const std::vector<LinearPart>& parts, const std::vector<at::Tensor>& weights) {
        const at::Tensor x = ShortConv({.x = parts[0].y,
                                        .weight = weights[0],
                                        .documents = {},
                                        .starts = {},
                                        .x_gradient = parts[0].gradient});
        return SwiGlu(parts[1].y, x, parts[1].gradient);
      },
      {16, 16}, {Normal({16, 1, 4}, 5, at::kFloat)});
}

// A gate whose width is not a multiple of a pack is copied, so its gradient is separate.
TEST(SharedMatrixTest, GateThatIsCopied) {
  ExpectSameGradients(
      [](const std::vector<LinearPart>& parts, const std::vector<at::Tensor>&) {
        return SwiGlu(parts[1].y, parts[0].y, parts[1].gradient);
      },
      {13, 13}, {});
}

TEST(SharedMatrixTest, ScanAndLinearLayer) {
  ExpectSameGradients(
      [](const std::vector<LinearPart>& parts, const std::vector<at::Tensor>& w) {
        const at::Tensor x =
            Linear(parts[0].y, w[0].to(parts[0].y.scalar_type()), parts[0].gradient);
        return SelectiveScan({.x = x,
                              .delta = x,
                              .delta_bias = w[1],
                              .a = w[2],
                              .negative_exp = true,
                              .b = parts[1].y,
                              .c = parts[2].y,
                              .skip = w[1],
                              .b_gradient = parts[1].gradient,
                              .c_gradient = parts[2].gradient})
            .y;
      },
      {6, 5, 5},
      {Normal({70, 6}, 5, at::kFloat) * 0.3, Normal({70}, 6, at::kFloat),
       Normal({70, 5}, 7, at::kFloat)});
}

at::Tensor HeadsOf(const LinearPart& part, int64_t dim) { return part.y.unflatten(-1, {-1, dim}); }

// The consumers of a gated linear attention: rotary, decay attention, and a norm with a gate.
TEST(SharedMatrixTest, RotaryDecayAttentionAndNorm) {
  const at::Tensor positions = at::arange(40).expand({2, 40}).contiguous();
  ExpectSameGradients(
      [&](const std::vector<LinearPart>& parts, const std::vector<at::Tensor>& weights) {
        const auto [q, k] = ApplyRotary(HeadsOf(parts[0], 6), HeadsOf(parts[1], 6),
                                        MakeRotaryTable(positions, 6, 100),
                                        {.q = parts[0].gradient, .k = parts[1].gradient});
        const at::Tensor o = DecayAttention({.q = q,
                                             .k = k,
                                             .v = HeadsOf(parts[2], 8),
                                             .log_decay = at::full({2}, -0.1, at::kFloat),
                                             .v_gradient = parts[2].gradient},
                                            {.scale = 0.4})
                                 .out;
        return GatedRmsNorm(o, HeadsOf(parts[3], 8), weights[0], 1e-5, kernels::NormGate::kSilu,
                            parts[3].gradient);
      },
      {12, 12, 16, 16}, {Normal({8}, 5, at::kFloat)});
}

TEST(SharedMatrixTest, DecayAttentionWithSharedHeads) {
  ExpectSameGradients(
      [](const std::vector<LinearPart>& parts, const std::vector<at::Tensor>&) {
        return DecayAttention({.q = HeadsOf(parts[0], 6),
                               .k = HeadsOf(parts[1], 6),
                               .v = HeadsOf(parts[2], 8),
                               .q_gradient = parts[0].gradient,
                               .k_gradient = parts[1].gradient,
                               .v_gradient = parts[2].gradient},
                              {.scale = 0.4})
            .out;
      },
      {12, 6, 16}, {});
}

TEST(SharedMatrixTest, SoftmaxAttention) {
  const at::Tensor positions = at::arange(40).expand({2, 40}).contiguous();
  ExpectSameGradients(
      [&](const std::vector<LinearPart>& parts, const std::vector<at::Tensor>&) {
        return SoftmaxAttention({.q = HeadsOf(parts[0], 6),
                                 .k = HeadsOf(parts[1], 6),
                                 .v = HeadsOf(parts[2], 8),
                                 .positions = positions,
                                 .q_gradient = parts[0].gradient,
                                 .k_gradient = parts[1].gradient,
                                 .v_gradient = parts[2].gradient},
                                {.scale = 0.4});
      },
      {12, 6, 8}, {});
}

TEST(SharedMatrixTest, GatesOfTheDeltaRule) {
  ExpectSameGradients(
      [](const std::vector<LinearPart>& parts, const std::vector<at::Tensor>& weights) {
        const auto [log_decay, beta] = DeltaGates({.x = parts[0].y,
                                                   .bias = weights[0],
                                                   .a_log = weights[1],
                                                   .b = parts[1].y,
                                                   .x_gradient = parts[0].gradient,
                                                   .b_gradient = parts[1].gradient},
                                                  {});
        return (log_decay.exp() * beta).to(parts[0].y.scalar_type());
      },
      {5, 5}, {Normal({5}, 5, at::kFloat), Normal({5}, 6, at::kFloat)});
}

// The sum of the two gradients of the first part has the bits of autograd's own sum, and nothing is
// concatenated.
TEST(SharedMatrixTest, SplitColumnsAddsTheGradientsOfTheFirstPart) {
  const std::vector<int64_t> widths = {6, 3, 4};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = Normal({2, 5, 13}, 1, dtype).requires_grad_();
    const auto loss = [](const at::Tensor& a, const at::Tensor& again, const at::Tensor& b,
                         const at::Tensor& c) {
      return a.square().sum() + again.pow(3).sum() + b.square().sum() + c.square().sum();
    };
    const auto parts = x.split_with_sizes(widths, -1);
    const at::Tensor want =
        torch::autograd::grad({loss(parts[0], parts[0], parts[1], parts[2])}, {x})[0];
    const auto [first, again, rest] = SplitColumns(x, widths);
    EXPECT_TRUE(test::BitEqual(first, again));
    EXPECT_TRUE(test::BitEqual(first, parts[0]));
    const auto placed = [](const LinearPart& part) {
      return BiasMap({{.x = part.y,
                       .bias = {},
                       .map = kernels::ElementMap::kSilu,
                       .gradient = part.gradient}})[0];
    };
    HostWaits waits;
    waits.EnterPhase("backward");
    const at::Tensor got =
        torch::autograd::grad({loss(first, again, placed(rest[0]), placed(rest[1]))}, {x})[0];
    EXPECT_EQ(waits.Take().at("backward").kernels.count("aten::cat"), 0u);
    EXPECT_TRUE(test::BitEqual(got.narrow(2, 0, 6), want.narrow(2, 0, 6)));
    const at::Tensor silu = torch::autograd::grad(
        {loss(parts[0], parts[0], at::silu(parts[1]), at::silu(parts[2]))}, {x})[0];
    EXPECT_TRUE(Close(got, silu, ToleranceOf(dtype)));
  }
}

// Channels 5 to 25 of 40 have the same output and gradients as in separate memory.
TEST(SharedMatrixTest, PartOfAScan) {
  const auto place = [](bool in_places) {
    const std::vector<int64_t> widths = {5, 20, 15};
    return in_places ? ColumnSlice{.columns = std::make_shared<SharedMatrix>(widths), .part = 1}
                     : ColumnSlice();
  };
  const auto one_of_wide = [](uint64_t seed) {
    return Normal({2, 40, 40}, seed).narrow(2, 5, 20).detach().requires_grad_();
  };
  const at::Tensor of_channels = Normal({20}, 5), states = Normal({2, 40, 3}, 6);
  const auto run = [&](bool in_places) {
    const at::Tensor x = one_of_wide(1), delta = one_of_wide(2);
    const at::Tensor y = SelectiveScan({.x = x,
                                        .delta = delta,
                                        .delta_bias = of_channels,
                                        .a = -of_channels.exp().unsqueeze(1).expand({20, 3}),
                                        .b = states,
                                        .c = states,
                                        .skip = of_channels,
                                        .x_gradient = place(in_places),
                                        .delta_gradient = place(in_places),
                                        .y_place = place(in_places)})
                             .y;
    const at::Tensor dy = Normal({2, 40, 40}, 7).narrow(2, 5, 20);
    std::vector<at::Tensor> results = torch::autograd::grad({y}, {x, delta}, {dy});
    results.push_back(y);
    for (const at::Tensor& result : results) EXPECT_EQ(result.stride(1), in_places ? 40 : 20);
    return results;
  };
  const auto got = run(true), want = run(false);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(test::BitEqual(got[i], want[i])) << i;
}

// A product of x in parts, and x for its other reader, adjacent or separate.
struct Read {
  at::Tensor other;
  std::vector<at::Tensor> y;
};
Read ReadTwice(const at::Tensor& x, const at::Tensor& weight, const std::vector<int64_t>& widths,
               bool beside) {
  if (!beside) return {x, Linear(x, weight).split_with_sizes(widths, -1)};
  const auto [again, parts] = LinearAndInput(x, weight, widths);
  return {again, {parts[0].y, parts[1].y}};
}

// x, a product of it in parts, and x's other reader. If that reader's gradient has other owners, it
// is not changed.
TEST(SharedMatrixTest, AProductAddsToTheGradientOfOtherReaders) {
  const std::vector<int64_t> widths = {5, 2};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const int64_t tokens : {5, 600})
      for (const int used : {1, 2, 3})  // Bits: 1 for the product, 2 for the other reader.
        for (const bool held : {false, true}) {
          SCOPED_TRACE(testing::Message() << dtype << ", " << tokens << ", " << used << held);
          const at::Tensor dx = Normal({tokens, 24}, 4, dtype);
          const auto run = [&](bool beside) {
            const at::Tensor x = Normal({tokens, 24}, 1, dtype).requires_grad_(),
                             weight = Normal({7, 24}, 2, dtype).requires_grad_();
            const auto [other, y] = ReadTwice(x, weight, widths, beside);
            std::vector<at::Tensor> outs, grads;
            if ((used & 1) != 0) {
              outs = {y[0], y[1]};
              grads = {Normal({tokens, 5}, 5, dtype), Normal({tokens, 2}, 6, dtype)};
            }
            if ((used & 2) != 0) {
              outs.push_back(held ? other : other.square());
              grads.push_back(dx);
            }
            return torch::autograd::grad(outs, {x, weight}, grads, /*retain_graph=*/true,
                                         /*create_graph=*/false, /*allow_unused=*/true);
          };
          const auto got = run(true), want = run(false);
          const double tolerance = ToleranceOf(dtype);
          EXPECT_TRUE(Close(got[0], want[0], tolerance));
          EXPECT_EQ(got[1].defined(), true);
          if (want[1].defined()) {
            EXPECT_TRUE(Close(got[1], want[1], tolerance));
          }
          EXPECT_TRUE(test::BitEqual(dx, Normal({tokens, 24}, 4, dtype)));
        }
}

TEST(SharedMatrixTest, ABackwardThatIsDifferentiatedAddsToo) {
  const auto second = [](bool beside) {
    const at::Tensor x = Normal({3, 4}, 1).requires_grad_(),
                     weight = Normal({7, 4}, 2).requires_grad_();
    const auto [other, y] = ReadTwice(x, weight, {2, 5}, beside);
    const auto first = torch::autograd::grad(
        {y[0].square().sum() + y[1].pow(3).sum() + other.pow(3).sum()}, {x, weight}, {},
        /*retain_graph=*/true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {x, weight});
  };
  const auto got = second(true), want = second(false);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(Close(got[i], want[i], 1e-12)) << i;
}

}  // namespace
}  // namespace halflife::ops
