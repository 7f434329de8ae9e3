// Linear layers that share an input, also with joined products and gradient sinks, equal separate
// layers.
#include "ops/linear/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <optional>
#include <vector>

#include "ops/gradient_check.h"
#include "ops/recording_sink.h"
#include "ops/torch/side_by_side.h"

namespace halflife::ops {
namespace {

using test::Normal;

TEST(SharedInputLinearTest, EqualsSeparateLayers) {
  const at::Tensor x = Normal({2, 3, 8}, 1, at::kFloat);
  const std::vector<at::Tensor> weights = {Normal({5, 8}, 2, at::kFloat),
                                           Normal({1, 8}, 3, at::kFloat)};
  const auto y = SharedInputLinear(x, weights);
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(test::BitEqual(y[i], at::linear(x, weights[i]))) << "output " << i;
}

TEST(SharedInputLinearTest, GradientsAreFiniteDifferences) {
  const auto loss = [](const auto& in) {
    const auto y = SharedInputLinear(in[0], {in[1], in[2], in[3]});
    return y[0].square().sum() + y[1].pow(3).sum() + (y[2] * y[0]).sum();
  };
  test::ExpectFiniteDifferences(
      loss, {Normal({2, 3, 4}, 1), Normal({5, 4}, 2), Normal({2, 4}, 3), Normal({5, 4}, 4)});
}

// With at least 512 tokens and 64 features, fp32 weight gradients use our own kernel. The bound,
// 1e-6 of the largest element (about 100), is ten times the mean rounding error of sums of 600
// products of unit variance.
TEST(SharedInputLinearTest, WeightGradientsOfManyTokensAreTheFormula) {
  for (const bool expanded : {false, true}) {
    const auto grads = [&](at::ScalarType dtype) {
      const at::Tensor x = Normal({2, 300, 65}, 1, dtype),
                       weight = Normal({70, 65}, 2, dtype).requires_grad_();
      const at::Tensor y = Linear(x, weight), dy = Normal({70}, 3, dtype).expand_as(y);
      y.backward(expanded ? dy : Normal({2, 300, 70}, 3, dtype));
      return weight.grad();
    };
    EXPECT_TRUE(test::Close(grads(at::kFloat), grads(at::kDouble), 1e-6)) << expanded;
  }
}

// Sums of up to 1400 products in fp32, rounded to bf16, as are the weights' gradients. If the
// matmuls run in bf16 (few rows, or a machine with tiles), the sum of two input gradients is
// rounded after each of them: three half units, because the first may exceed the sum.
TEST(SharedInputLinearTest, Bf16IsTheFormula) {
  for (const int64_t rows : {5, 64, 700}) {
    SCOPED_TRACE(rows);
    test::ExpectBf16MatchesDouble(
        [](const auto& in) {
          return at::cat(SharedInputLinear(in[0], {in[1], in[2]}), -1);
        },
        {Normal({2, rows, 24}, 1), Normal({40, 24}, 2), Normal({3, 24}, 3)}, /*roundings=*/3);
    test::ExpectBf16MatchesDouble([](const auto& in) { return Linear(in[0], in[1]); },
                                  {Normal({2, rows, 24}, 1), Normal({40, 24}, 2)});
  }
}

// An unused output has no gradient and does not affect those of other outputs.
TEST(SharedInputLinearTest, UnusedOutputs) {
  const at::Tensor x = Normal({3, 4}, 1).requires_grad_(), a = Normal({2, 4}, 2).requires_grad_(),
                   b = Normal({2, 4}, 3).requires_grad_();
  SharedInputLinear(x, {a, b})[1].sum().backward();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_TRUE(test::Close(x.grad(), b.detach().sum(0).expand({3, 4}), 1e-14));

  const at::Tensor narrow = Normal({100, 4}, 1, at::kBFloat16).requires_grad_(),
                   c = Normal({2, 4}, 2, at::kBFloat16).requires_grad_(),
                   d = Normal({2, 4}, 3, at::kBFloat16);
  SharedInputLinear(narrow, {c, d})[1].sum().backward();
  EXPECT_FALSE(c.grad().defined());
  EXPECT_TRUE(test::Close(narrow.grad(), d.to(at::kDouble).sum(0).expand({100, 4}), 0x1p-8));
}

// A layer with five or 300 tokens. The weights and their sums are in one memory block, in reverse
// order and with a gap between the second and the third weight.
struct Layer {
  at::Tensor x;
  std::vector<at::Tensor> weights;
  std::vector<std::unique_ptr<test::RecordingSink::Log>> logs;  // One per weight.

  Layer(at::ScalarType dtype, int64_t tokens, int64_t gap, bool added) {
    const std::vector<int64_t> outs = {5, 3, 8}, begins = {11 + gap, 8 + gap, 0};
    const at::Tensor memory = Normal({16 + gap, 24}, 1, dtype),
                     sums = at::ones({16 + gap, 24}, at::kFloat);
    for (size_t i = 0; i < outs.size(); ++i) {
      weights.push_back(memory.narrow(0, begins[i], outs[i]).detach().requires_grad_());
      logs.push_back(
          std::make_unique<test::RecordingSink::Log>(sums.narrow(0, begins[i], outs[i])));
      logs.back()->added = added;
    }
    x = Normal({tokens, 24}, 2, dtype).requires_grad_();
  }
  void Attach() {
    for (size_t i = 0; i < weights.size(); ++i) logs[i]->Attach(weights[i]);
  }
  // Returns dx, then the weights' gradients, each of which must be written once.
  std::vector<at::Tensor> Gradients(const std::vector<bool>& used) {
    const auto y = SharedInputLinear(x, weights);
    at::Tensor loss = at::zeros({}, x.options());
    for (size_t i = 0; i < y.size(); ++i)
      if (used[i]) loss = loss + (y[i] * Normal(y[i].sizes().vec(), 7 + i, x.scalar_type())).sum();
    loss.backward();
    std::vector<at::Tensor> grads = {x.grad()};
    for (size_t i = 0; i < weights.size(); ++i)
      grads.push_back(logs[i]->written > 0 ? logs[i]->sum : weights[i].grad());
    return grads;
  }
};

// Joining the products of adjacent weights, and writing sums in place, changes only roundings:
// those of sums of up to 300 products, or three bf16 roundings (a separate sum of three input
// gradients rounds after each).
TEST(SharedInputLinearTest, JoinedProductsAreTheSame) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 1e-6 : 3 * 0x1p-8;
    for (const int64_t tokens : {5, 300})
      for (const int64_t gap : {0, 2})
        for (const bool sinks : {false, true})
          for (const std::vector<bool>& used :
               {std::vector<bool>{true, true, true}, {true, false, true}, {false, true, false}}) {
            SCOPED_TRACE(testing::Message() << dtype << " tokens " << tokens << " gap " << gap
                                            << " sinks " << sinks << used[0] << used[1]);
            Layer apart(dtype, tokens, gap, false), joined(dtype, tokens, gap, false);
            const auto want = apart.Gradients(used);
            if (sinks) joined.Attach();
            const JoinedProductsEverywhere join;
            const auto got = joined.Gradients(used);
            for (size_t i = 0; i < want.size(); ++i) {
              ASSERT_EQ(got[i].defined(), want[i].defined()) << i;
              if (!want[i].defined()) continue;
              EXPECT_TRUE(test::Close(got[i].to(at::kDouble), want[i].to(at::kDouble), tolerance))
                  << i;
            }
            for (size_t i = 0; i < used.size(); ++i)
              EXPECT_EQ(joined.logs[i]->written, sinks && used[i] ? 1 : 0) << i;
          }
  }
}

// Gradients are added to sums that hold earlier micro-batches, in place or not. The second of three
// sums starts anew, which separates it from the others.
TEST(SharedInputLinearTest, AddsToTheSumsThatSaySo) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t tokens : {300, 600})
      for (const bool mixed : {false, true})
        for (const bool join : {false, true}) {
          Layer fresh(dtype, tokens, 0, false), adding(dtype, tokens, 0, true);
          fresh.Attach(), adding.Attach();
          if (mixed) adding.logs[1]->added = false;
          std::optional<JoinedProductsEverywhere> joins;
          if (join) joins.emplace();
          const auto want = fresh.Gradients({true, true, true}),
                     got = adding.Gradients({true, true, true});
          for (size_t i = 1; i < want.size(); ++i) {
            const double before = mixed && i == 2 ? 0 : 1;
            EXPECT_TRUE(test::Close(got[i], want[i] + before, 1e-5)) << i;
          }
        }
}

// The graph still refers to the weights after a backward that is itself differentiated.
TEST(SharedInputLinearTest, JoinedProductsKeepDifferentiatedBackwards) {
  const ops::JoinedProductsEverywhere join;
  const at::Tensor memory = Normal({7, 4}, 1);
  const auto loss = [&](const auto& in) {
    const auto y = SharedInputLinear(in[0], {in[1], in[2]});
    return y[0].square().sum() + y[1].pow(3).sum();
  };
  const at::Tensor x = Normal({3, 4}, 2).requires_grad_(),
                   a = memory.narrow(0, 0, 2).detach().requires_grad_(),
                   b = memory.narrow(0, 2, 5).detach().requires_grad_();
  const auto first = torch::autograd::grad({loss(std::vector{x, a, b})}, {x, a, b}, {},
                                           /*retain_graph=*/true, /*create_graph=*/true);
  const auto second = torch::autograd::grad({first[0].square().sum()}, {a, b});
  EXPECT_TRUE(second[0].defined() && second[1].defined());
  EXPECT_GT(second[0].abs().max().item<double>(), 0);
}

std::vector<at::Tensor> Outputs(const std::vector<LinearPart>& parts) {
  std::vector<at::Tensor> outs;
  for (const LinearPart& part : parts) outs.push_back(part.y);
  return outs;
}

// Parts of one weight's rows have the outputs and gradients of the whole. The sink receives the
// gradient at once, with joined products and without, for all parts or some.
TEST(LinearInPartsTest, IsTheWholeCut) {
  const std::vector<int64_t> widths = {20, 6, 14};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const int64_t tokens : {5, 600})
      for (const bool join : {false, true})
        for (const bool all : {false, true})
          for (const bool sink : {false, true}) {
            if (sink && dtype == at::kDouble) continue;  // Sinks do not sum fp64 gradients in fp32.
            SCOPED_TRACE(testing::Message() << dtype << ", " << tokens << " tokens, join " << join
                                            << ", all " << all << ", sink " << sink);
            std::optional<JoinedProductsEverywhere> joins;
            if (join) joins.emplace();
            const auto run = [&](bool parts) {
              const at::Tensor x = Normal({tokens, 24}, 1, dtype).requires_grad_(),
                               weight = Normal({40, 24}, 2, dtype).requires_grad_();
              test::RecordingSink::Log log(weight, /*before=*/0.5);
              log.added = true;
              if (sink) log.Attach(weight);
              const auto y = parts ? Outputs(LinearInParts(x, weight, widths))
                                   : Linear(x, weight).split_with_sizes(widths, -1);
              at::Tensor loss = (y[0] * Normal({tokens, 20}, 3, dtype)).sum() +
                                (y[2] * Normal({tokens, 14}, 4, dtype)).sum();
              if (all) loss = loss + (y[1] * Normal({tokens, 6}, 5, dtype)).sum();
              loss.backward();
              EXPECT_EQ(log.written, sink ? 1 : 0);
              return std::vector<at::Tensor>{at::cat(at::TensorList(y), -1), x.grad(),
                                             sink ? log.sum : weight.grad()};
            };
            const auto got = run(true), want = run(false);
            const double tolerance = dtype == at::kBFloat16 ? 3 * 0x1p-8 : 1e-6;
            for (size_t i = 0; i < want.size(); ++i)
              EXPECT_TRUE(test::Close(got[i], want[i], tolerance)) << i;
          }
}

TEST(LinearInPartsTest, ABackwardThatIsDifferentiatedIsTheWholes) {
  const auto second = [](bool parts) {
    const at::Tensor x = Normal({3, 4}, 1).requires_grad_(),
                     weight = Normal({7, 4}, 2).requires_grad_();
    const std::vector<int64_t> widths = {2, 5};
    const auto y = parts ? Outputs(LinearInParts(x, weight, widths))
                         : Linear(x, weight).split_with_sizes(widths, -1);
    const auto first =
        torch::autograd::grad({y[0].square().sum() + y[1].pow(3).sum()}, {x, weight}, {},
                              /*retain_graph=*/true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {x, weight});
  };
  const auto got = second(true), want = second(false);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(test::Close(got[i], want[i], 1e-12)) << i;
}

// Rows of x that are columns of a matrix are multiplied in place.
TEST(LinearInPartsTest, ColumnsOfAMatrixAreTheirCopy) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {5, 600}) {
      const auto run = [&](bool copied) {
        const at::Tensor all = Normal({tokens, 40}, 1, dtype).requires_grad_(),
                         weight = Normal({24, 20}, 2, dtype).requires_grad_();
        const at::Tensor x = all.narrow(1, 8, 20), y = Linear(copied ? x.contiguous() : x, weight);
        y.backward(Normal({tokens, 24}, 3, dtype));
        return std::vector<at::Tensor>{y, all.grad(), weight.grad()};
      };
      const auto got = run(false), want = run(true);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(test::Close(got[i], want[i], dtype == at::kFloat ? 1e-6 : 3 * 0x1p-8)) << i;
    }
  }
}

}  // namespace
}  // namespace halflife::ops
