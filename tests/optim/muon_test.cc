// Muon's rule for matrices: golden values from torch, the singular values of its updates, and bits
// that do not depend on how a matrix is cut into ranges.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_svd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/concat.h"
#include "optim/optimizer_choice.h"

namespace halflife::optim {
namespace {

using testing::ElementsAre;

// A matrix with its state arrays, which is updated by Muon without weight copies.
class UpdatedMatrix {
 public:
  UpdatedMatrix(int64_t rows, int64_t columns, const OptimizerChoice& choice,
                const AdamWConfig& adamw)
      : rows_(rows),
        columns_(columns),
        optimizer_(choice.Make(adamw)),
        weight_decay_(static_cast<float>(adamw.weight_decay)),
        main(static_cast<size_t>(rows * columns)),
        grads(main.size()),
        momentum_(main.size()),
        v_(main.size()) {}

  // Stages and applies the matrix in ranges of `range` elements.
  void Update(double lr, int64_t range = 1 << 30) {
    const MatrixRule& rule = *optimizer_->matrix_rule();
    const UpdateArgs args = {.main = main.data(),
                             .grads = grads.data(),
                             .states = {momentum_.data(), v_.data()},
                             .lr = lr};
    std::vector<float> values(main.size());
    const auto for_ranges = [&](const auto& function) {
      const auto count = static_cast<int64_t>(main.size());
      for (int64_t begin = 0; begin < count; begin += range) {
        const int64_t end = std::min(count, begin + range);
        function(Range{.parameter = "matrix",
                       .shape = {rows_, columns_},
                       .first = begin,
                       .begin = begin,
                       .end = end,
                       .weight_decay = weight_decay_},
                 Ref(values.data() + begin, end - begin));
      }
    };
    for_ranges([&](const Range& part, const TensorRef& out) { rule.Stage(args, part, out); });
    rule.Transform(Ref(values.data(), rows_ * columns_), rows_, columns_);
    for_ranges([&](const Range& part, const TensorRef& in) { rule.Apply(args, part, in); });
  }

 private:
  int64_t rows_, columns_;
  std::unique_ptr<Optimizer> optimizer_;
  float weight_decay_;

 public:
  std::vector<float> main, grads;

 private:
  std::vector<float> momentum_, v_;
};

float Value(int step, int64_t i) {
  return static_cast<float>(
      std::sin(1.0 + 3.0 * static_cast<double>(i) + 7.0 * step * static_cast<double>(i + 1)));
}

void Fill(std::vector<float>& values, int step) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = Value(step, static_cast<int64_t>(i));
}

// The last weights of three updates, from muon_golden.py in fp64.
TEST(Muon, EqualsTorch) {
  const struct {
    int64_t rows, columns;
    std::vector<double> weights;
  } cases[] = {{3,
                4,
                {0.7866414, -0.7479052, 0.6488790, -0.5416419, 0.4242466, -0.2862202, 0.1678325,
                 -0.0446704, -0.1365348, 0.2941337, -0.4114250, 0.5300603}},
               {4,
                3,
                {0.8046656, -0.7552573, 0.6519753, -0.5397772, 0.4115874, -0.2902203, 0.1656434,
                 -0.0414332, -0.1320342, 0.2895966, -0.4012185, 0.5276654}}};
  for (const auto& [rows, columns, weights] : cases) {
    SCOPED_TRACE(Concat(rows, " x ", columns));
    UpdatedMatrix matrix(rows, columns, OptimizerChoice("muon"), {.weight_decay = 0.1});
    Fill(matrix.main, 0);
    for (int step = 1; step <= 3; ++step) {
      Fill(matrix.grads, step);
      matrix.Update(0.05);
    }
    // Each quintic step multiplies an error by at most 3.45, so five steps turn a few roundings
    // (2^-24) of values below 1 into 500 times as much. A step moves a weight by 0.02 of it.
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(matrix.main[i], weights[i], 3 * 0.02 * 500 * 8 * 0x1p-24 + 1e-7) << i;
  }
}

// Without decay, a matrix moves by a matrix with the gradient's singular vectors. Five quintic
// steps map a singular value in [0.01, 1] of the norm to [0.6818, 1.1344], which the polynomial
// gives.
TEST(Muon, MovesAlongTheSingularVectors) {
  for (const auto& [rows, columns] : {std::pair{24, 10}, {10, 24}, {16, 16}}) {
    SCOPED_TRACE(Concat(rows, " x ", columns));
    UpdatedMatrix matrix(rows, columns, OptimizerChoice("muon"), {.weight_decay = 0});
    Fill(matrix.grads, 1);
    for (size_t i = 0; i < matrix.grads.size(); i += 3) matrix.grads[i] *= 2;
    const auto view = [&](std::vector<float>& x) {
      return at::from_blob(x.data(), {rows, columns}).to(at::kDouble);
    };
    const auto [u, s, vh] = at::linalg_svd(view(matrix.grads), /*full_matrices=*/false);
    matrix.Update(/*lr=*/1);
    const double scale = 0.2 * std::sqrt(std::max(rows, columns));
    const at::Tensor moved = u.t().mm(-view(matrix.main) / scale).mm(vh.t());
    const at::Tensor values = moved.diagonal();
    for (int64_t i = 0; i < s.numel(); ++i) {
      if (s[i].item<double>() < 0.01 * s.norm().item<double>()) continue;
      EXPECT_GT(values[i].item<double>(), 0.68) << i;
      EXPECT_LT(values[i].item<double>(), 1.14) << i;
    }
    EXPECT_LT((moved - values.diag()).abs().max().item<double>(), 1e-3) << "other vectors";
  }
}

TEST(Muon, BitsDoNotDependOnTheRanges) {
  const auto train = [](int64_t range) {
    UpdatedMatrix matrix(12, 9, OptimizerChoice("muon"), {.weight_decay = 0.1});
    Fill(matrix.main, 0);
    for (int step = 1; step <= 3; ++step) {
      Fill(matrix.grads, step);
      matrix.Update(0.05, range);
    }
    return matrix.main;
  };
  const std::vector<float> whole = train(1 << 30);
  for (const int64_t range : {1, 7, 16, 40}) EXPECT_EQ(train(range), whole) << range;
}

TEST(Muon, AZeroGradientMovesNothing) {
  UpdatedMatrix matrix(4, 4, OptimizerChoice("muon"), {.weight_decay = 0});
  Fill(matrix.main, 0);
  const std::vector<float> before = matrix.main;
  matrix.Update(1);
  EXPECT_EQ(matrix.main, before);
}

TEST(Muon, OptionsChangeTheUpdate) {
  const auto train = [](const char* option, double value) {
    OptimizerChoice choice("muon");
    for (const Option& field : choice.config().Fields()) {
      if (std::string(field.name) != option) continue;
      if (auto* const number = std::get_if<double*>(&field.place)) **number = value;
      if (auto* const count = std::get_if<int64_t*>(&field.place))
        **count = static_cast<int64_t>(value);
      if (auto* const flag = std::get_if<bool*>(&field.place)) **flag = value != 0;
    }
    UpdatedMatrix matrix(5, 4, choice, {});
    for (int step = 1; step <= 2; ++step) {
      Fill(matrix.grads, step);
      matrix.Update(0.05);
    }
    return matrix.main;
  };
  const std::vector<float> usual = train("none", 0);
  EXPECT_NE(train("momentum", 0.5), usual);
  EXPECT_NE(train("nesterov", 0), usual);
  EXPECT_NE(train("newton_schulz_steps", 3), usual);
}

TEST(Muon, RefusesValuesOutsideTheirLimits) {
  OptimizerChoice choice("muon");
  EXPECT_TRUE(choice.config().Problems().empty());
  *std::get<double*>(choice.config().Fields()[0].place) = 1;
  *std::get<int64_t*>(choice.config().Fields()[2].place) = 0;
  EXPECT_THAT(choice.config().Problems(),
              ElementsAre("momentum: 1. Use [0, 1)",
                          "newton_schulz_steps: 0. Use 1 to 100 (for example 5)"));
}

}  // namespace
}  // namespace halflife::optim
