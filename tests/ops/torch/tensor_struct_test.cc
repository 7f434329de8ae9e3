// Structs of tensors as lists, and operations that are defined by structs.
#include "ops/torch/tensor_struct.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/torch/autograd.h"

namespace halflife::ops {
namespace {

using testing::ElementsAre;
using torch::autograd::grad;

at::Tensor Filled(double value) { return at::full({2}, value); }
at::Tensor Leaf(double value) { return Filled(value).requires_grad_(); }
float First(const at::Tensor& x) { return x.const_data_ptr<float>()[0]; }

struct Pair {
  at::Tensor a, b;
};
struct Nested {
  at::Tensor x;
  Pair pair;
  std::vector<Pair> pairs;
};

TEST(TensorStruct, TheListHasTheOrderOfDeclaration) {
  const Nested given = {
      .x = Filled(0),
      .pair = {.a = Filled(1), .b = {}},
      .pairs = {{.a = Filled(3), .b = Filled(4)}, {.a = {}, .b = Filled(6)}},
  };
  const Tensors list = ToList(given);
  ASSERT_EQ(list.size(), 7u);
  for (size_t i = 0; i < list.size(); ++i) {
    if (i == 2 || i == 5) {
      EXPECT_FALSE(list[i].defined()) << i;
    } else {
      EXPECT_EQ(First(list[i]), static_cast<float>(i));
    }
  }
  const auto back = FromList<Nested>(list);
  EXPECT_TRUE(back.x.is_same(given.x));
  EXPECT_TRUE(back.pair.a.is_same(given.pair.a));
  EXPECT_FALSE(back.pair.b.defined());
  ASSERT_EQ(back.pairs.size(), 2u);
  EXPECT_TRUE(back.pairs[0].b.is_same(given.pairs[0].b));
  EXPECT_TRUE(back.pairs[1].b.is_same(given.pairs[1].b));
}

TEST(TensorStruct, AnEmptyStructIsAnEmptyList) {
  struct Nothing {};
  EXPECT_TRUE(ToList(Nothing()).empty());
  FromList<Nothing>({});
}

TEST(TensorStruct, AListOfAnotherLengthIsRefused) {
  EXPECT_THROW(FromList<Pair>({Filled(0), Filled(1), Filled(2)}), Error);
  EXPECT_ANY_THROW(FromList<Pair>({Filled(0)}));
}

TEST(TensorStruct, AMovedListKeepsASingleReference) {
  Tensors list = {Filled(0), Filled(1)};
  const auto pair = FromList<Pair>(std::move(list));
  EXPECT_EQ(pair.a.use_count(), 1u);
  EXPECT_EQ(pair.b.use_count(), 1u);
}

TEST(TensorStruct, AFieldHasAPosition) {
  EXPECT_EQ(IndexOfField(&Nested::x), 0u);
  EXPECT_EQ(IndexOfField(&Nested::pairs), 3u);
  EXPECT_EQ(IndexOfField(&Pair::b), 1u);
}

// y[i] = x a[i] + b[i]
struct ScaledSums {
  struct Inputs {
    at::Tensor x;
    std::vector<Pair> terms;
  };
  struct Outputs {
    std::vector<at::Tensor> ys;
  };
  using Saved = Inputs;
};
ScaledSums::Outputs RunScaledSums(const ScaledSums::Inputs& in,
                                  std::vector<std::vector<bool>>& wants) {
  const auto backward = [&wants](const BackwardOf<ScaledSums>& call) {
    ScaledSums::Inputs grads = {.x = at::zeros_like(call.saved.x), .terms = {}};
    wants = {{call.Wants(&ScaledSums::Inputs::x)}};
    for (size_t i = 0; i < call.saved.terms.size(); ++i) {
      const at::Tensor& dy = call.grads.ys[i];
      grads.x = grads.x + dy * call.saved.terms[i].a;
      grads.terms.push_back({.a = dy * call.saved.x, .b = dy});
      wants.push_back({call.Wants(&ScaledSums::Inputs::terms, i, &Pair::a),
                       call.Wants(&ScaledSums::Inputs::terms, i, &Pair::b)});
    }
    return grads;
  };
  const auto forward = [&]() -> ForwardOf<ScaledSums> {
    ForwardOf<ScaledSums> result = {.outputs = {}, .saved = in, .backward = backward};
    for (const Pair& term : in.terms) result.outputs.ys.push_back(in.x * term.a + term.b);
    return result;
  };
  return Apply<ScaledSums>({.name = "ScaledSums", .inputs = in, .forward = forward});
}

TEST(TensorStruct, AnOperationIsDifferentiatedByItsFields) {
  const ScaledSums::Inputs in = {
      .x = Leaf(2), .terms = {{.a = Leaf(3), .b = Filled(5)}, {.a = Filled(7), .b = Leaf(11)}}};
  std::vector<std::vector<bool>> wants;
  const ScaledSums::Outputs out = RunScaledSums(in, wants);
  ASSERT_EQ(out.ys.size(), 2u);
  EXPECT_EQ(First(out.ys[0]), 2 * 3 + 5);
  EXPECT_EQ(First(out.ys[1]), 2 * 7 + 11);
  const Tensors grads =
      grad({(out.ys[0] + 10 * out.ys[1]).sum()}, {in.x, in.terms[0].a, in.terms[1].b});
  EXPECT_EQ(First(grads[0]), 3 + 10 * 7);
  EXPECT_EQ(First(grads[1]), 2);
  EXPECT_EQ(First(grads[2]), 10);
  EXPECT_THAT(wants,
              ElementsAre(ElementsAre(true), ElementsAre(true, false), ElementsAre(false, true)));
}

TEST(TensorStruct, WillBeDifferentiatedIfAFieldRequiresAGradient) {
  EXPECT_TRUE(WillBeDifferentiated(Pair{.a = {}, .b = Leaf(1)}));
  EXPECT_FALSE(WillBeDifferentiated(Pair{.a = {}, .b = Filled(1)}));
  const c10::AutoGradMode no_grad(false);
  EXPECT_FALSE(WillBeDifferentiated(Pair{.a = {}, .b = Leaf(1)}));
}

}  // namespace
}  // namespace halflife::ops
