// The kernels' interface to LibTorch's autograd: what is recorded, what a backward receives, and
// what is refused.
#include "ops/torch/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>

#include "core/error.h"

namespace halflife::ops {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::autograd::grad;

at::Tensor Filled(double value) { return at::full({2}, value); }
at::Tensor Leaf(double value) { return Filled(value).requires_grad_(); }
double First(const at::Tensor& x) { return x.const_data_ptr<float>()[0]; }

// x^2. Its backward reads x.
at::Tensor Square(const at::Tensor& x) {
  const auto forward = [&]() -> Forwarded {
    return {.outputs = {x * x}, .saved = {x}, .backward = [](const BackwardCall& call) -> Tensors {
              return {2 * call.saved[0] * call.grads[0]};
            }};
  };
  return Apply({.name = "Square", .inputs = {x}, .forward = forward})[0];
}

std::string MessageOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Autograd, DifferentiatesThroughTheGivenBackward) {
  const at::Tensor x = Leaf(3);
  const at::Tensor y = Square(Square(x));
  EXPECT_EQ(First(y), 81);
  EXPECT_EQ(First(grad({y.sum()}, {x})[0]), 4 * 27);
}

TEST(Autograd, RecordsNothingWithoutAReader) {
  EXPECT_FALSE(Square(Filled(3)).requires_grad());
  const c10::AutoGradMode no_grad(false);
  EXPECT_FALSE(Square(Leaf(3)).requires_grad());
}

TEST(Autograd, TheForwardItselfIsNotRecorded) {
  const at::Tensor x = Leaf(3);
  const auto forward = [&]() -> Forwarded {
    const at::Tensor y = x * x;
    EXPECT_FALSE(y.requires_grad());
    return {
        .outputs = {y}, .saved = {}, .backward = [](const BackwardCall& call) -> Tensors {
          return {call.grads[0]};  // The gradient of another function, to show whose backward ran.
        }};
  };
  const at::Tensor y = Apply({.name = "Same", .inputs = {x}, .forward = forward})[0];
  EXPECT_EQ(First(grad({y.sum()}, {x})[0]), 1);
}

TEST(Autograd, RefusesAnInputThatWasModifiedInPlace) {
  const at::Tensor x = Leaf(3), wide = x * 1;
  const at::Tensor y = Square(wide);
  wide.mul_(2);
  EXPECT_THAT(MessageOf([&] { grad({y.sum()}, {x}); }),
              HasSubstr("modified by an inplace operation"));
}

TEST(Autograd, RunsASecondBackwardOnlyWhereTheGraphIsRetained) {
  const at::Tensor x = Leaf(3), y = Square(x).sum();
  const auto run = [&](bool retain) { return First(grad({y}, {x}, {}, retain)[0]); };
  EXPECT_EQ(run(true), 6);
  EXPECT_EQ(run(false), 6);
  EXPECT_THAT(MessageOf([&] { run(false); }),
              HasSubstr("backward through the graph a second time"));
}

// Returns two outputs, 2 a and 3 b, where b may be missing. `seen` records what the backward
// received.
Tensors Multiples(const at::Tensor& a, const at::Tensor& b, bool undefined_grads,
                  BackwardCall& seen, size_t num_constant = 0) {
  const auto forward = [&]() -> Forwarded {
    return {.outputs = {2 * a, b.defined() ? 3 * b : Filled(0)},
            .saved = {at::Tensor(), a},
            .backward = [&seen](const BackwardCall& call) -> Tensors {
              seen = call;
              const auto times = [&](size_t i, double factor) {
                return call.grads[i].defined() ? factor * call.grads[i] : at::Tensor();
              };
              return {times(0, 2), times(1, 3)};
            },
            .num_constant = num_constant};
  };
  return Apply({.name = "Multiples",
                .inputs = {a, b},
                .undefined_grads = undefined_grads,
                .forward = forward});
}

TEST(Autograd, AnOutputWithoutAGradientHasZerosOrNone) {
  const at::Tensor a = Leaf(1), b = Leaf(1);
  BackwardCall seen;
  const Tensors zeros = grad({Multiples(a, b, false, seen)[0].sum()}, {a, b});
  EXPECT_EQ(First(seen.grads[1]), 0);
  EXPECT_EQ(First(zeros[0]), 2);
  EXPECT_EQ(First(zeros[1]), 0);
  const Tensors none =
      grad({Multiples(a, b, true, seen)[0].sum()}, {a, b}, {}, {}, false, /*allow_unused=*/true);
  EXPECT_FALSE(seen.grads[1].defined());
  EXPECT_EQ(First(none[0]), 2);
  EXPECT_FALSE(none[1].defined());
}

TEST(Autograd, SaysWhichGradientsAreWanted) {
  const at::Tensor a = Leaf(1), b = Leaf(1);
  BackwardCall seen;
  const auto wanted = [&](const at::Tensor& second, const Tensors& of) {
    const Tensors out = Multiples(a, second, false, seen);
    grad({out[0].sum()}, of);
    return seen.wanted;
  };
  EXPECT_THAT(wanted(b, {a, b}), ElementsAre(true, true));
  EXPECT_THAT(wanted(b, {a}), ElementsAre(true, false));
  EXPECT_THAT(wanted(Filled(1), {a}), ElementsAre(true, false));
  EXPECT_THAT(wanted(at::Tensor(), {a}), ElementsAre(true, false));
  EXPECT_FALSE(seen.saved[0].defined());
  EXPECT_TRUE(seen.saved[1].is_same(a));
}

TEST(Autograd, ConstantOutputsHaveNoGradient) {
  BackwardCall seen;
  const Tensors out = Multiples(Leaf(1), Leaf(1), false, seen, 1);
  EXPECT_TRUE(out[0].requires_grad());
  EXPECT_FALSE(out[1].requires_grad());
}

TEST(Autograd, ASavedOutputDoesNotKeepItsGraphAlive) {
  const at::Tensor x = Leaf(3);
  auto captured = std::make_shared<int>(0);
  const std::weak_ptr<int> alive = captured;
  {
    const auto forward = [&]() -> Forwarded {
      const at::Tensor y = x.exp();
      return {.outputs = {y},
              .saved = {y},
              .backward = [captured](const BackwardCall& call) -> Tensors {
                return {call.saved[0] * call.grads[0]};
              }};
    };
    const at::Tensor y = Apply({.name = "Exp", .inputs = {x}, .forward = forward})[0];
    captured.reset();
    EXPECT_FALSE(alive.expired());
    EXPECT_EQ(First(grad({y.sum()}, {x}, {}, true)[0]), First(y));
  }
  EXPECT_TRUE(alive.expired());
}

// The leaf that the function reads gets its gradient, although no graph of the first run contains
// it. An input that requires no gradient gets none.
TEST(Autograd, ARecomputedFunctionRunsTwiceAndKeepsOnlyItsInputs) {
  const at::Tensor x = Leaf(3), weight = Leaf(2), constant = Filled(5);
  int runs = 0;
  std::weak_ptr<int> inner;
  const auto forward = [&](const Tensors& in) -> Tensors {
    ++runs;
    auto kept = std::make_shared<int>(0);
    inner = kept;
    const auto within = [&]() -> Forwarded {
      return {.outputs = {in[0] * in[1]},
              .saved = {in[0], in[1]},
              .backward = [kept](const BackwardCall& call) -> Tensors {
                return {call.saved[1] * call.grads[0], {}};
              }};
    };
    return {Apply({.name = "Product", .inputs = {in[0], in[1]}, .forward = within})[0] * weight,
            in[2]};
  };
  const Tensors out = Recomputed("Again", {x, constant, {}}, forward);
  EXPECT_EQ(First(out[0]), 30);
  EXPECT_FALSE(out[1].defined());
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(inner.expired());
  torch::autograd::backward({out[0].sum()}, {});
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(inner.expired());
  EXPECT_EQ(First(x.grad()), 10);
  EXPECT_EQ(First(weight.grad()), 15);
  EXPECT_FALSE(constant.grad().defined());
}

// A leaf that only the function reads also gets its gradient.
TEST(Autograd, ARecomputedFunctionRunsOnceIfNoInputRequiresAGradient) {
  const at::Tensor weight = Leaf(2);
  int runs = 0;
  const auto forward = [&](const Tensors& in) -> Tensors {
    ++runs;
    return {in[0] * weight};
  };
  {
    const c10::AutoGradMode no_grad(false);
    EXPECT_FALSE(Recomputed("Again", {Leaf(3)}, forward)[0].requires_grad());
  }
  torch::autograd::backward({Recomputed("Again", {Filled(3)}, forward)[0].sum()}, {});
  EXPECT_EQ(First(weight.grad()), 3);
  EXPECT_EQ(runs, 2);
}

// One output gets no gradient, another depends on no leaf.
TEST(Autograd, ARecomputedFunctionTakesGradientsOfSomeOutputs) {
  const at::Tensor x = Leaf(3);
  const auto forward = [](const Tensors& in) -> Tensors {
    return {in[0] * in[0], in[0] * 7, Filled(1)};
  };
  torch::autograd::backward({Recomputed("Again", {x}, forward)[0].sum()}, {});
  EXPECT_EQ(First(x.grad()), 6);
}

TEST(Autograd, RefusesABackwardOfTooFewGradients) {
  const at::Tensor x = Leaf(3);
  const auto forward = [&]() -> Forwarded {
    return {.outputs = {x * x}, .saved = {}, .backward = [](const BackwardCall&) -> Tensors {
              return {};
            }};
  };
  const at::Tensor y = Apply({.name = "Short", .inputs = {x}, .forward = forward})[0];
  EXPECT_THAT(MessageOf([&] { grad({y.sum()}, {x}); }),
              HasSubstr("Short returned 0 gradients for 1 inputs"));
}

}  // namespace
}  // namespace halflife::ops
