#include "model/parameters.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <vector>

#include "support/expect_error.h"

namespace halflife::model {
namespace {

std::vector<float> Draw(const std::string& name, std::vector<int64_t> shape, uint64_t seed) {
  ParameterSet parameters;
  const Parameter parameter =
      parameters.Declare({.name = name, .shape = shape}, Init::Normal(0.02));
  std::vector<float> values(parameters.specs()[0].count());
  parameters.Initialise(parameter.index(), seed, values.data());
  return values;
}

TEST(ParametersTest, HandlesSeeWhatIsBound) {
  ParameterSet parameters;
  const Parameter early = parameters.Declare({.name = "a", .shape = {2, 3}}, Init::Zeros());
  const Parameter copy = early;
  parameters.Declare({.name = "b", .shape = {4}}, Init::Ones());
  EXPECT_FALSE(early->defined());
  const at::Tensor memory = at::empty({2, 3});
  parameters.Bind(early.index(), memory);
  EXPECT_TRUE(copy->is_same(memory));
  EXPECT_TRUE(parameters.tensor(0).is_same(memory));
  EXPECT_EQ(parameters.specs()[1].name, "b");
}

TEST(ParametersTest, Misuse) {
  ParameterSet parameters;
  const Parameter a = parameters.Declare({.name = "a", .shape = {2}}, Init::Zeros());
  EXPECT_HL_ERROR(parameters.Declare({.name = "a", .shape = {3}}, Init::Zeros()),
                  ExitCode::kInternal, "'a' is declared twice");
  EXPECT_HL_ERROR(parameters.Bind(a.index(), at::empty({3})), ExitCode::kInternal, "parameter a",
                  "[2]", "[3]");
}

TEST(InitialiseTest, ConstantKinds) {
  ParameterSet parameters;
  parameters.Declare({.name = "zeros", .shape = {3}}, Init::Zeros());
  parameters.Declare({.name = "ones", .shape = {3}}, Init::Ones());
  std::vector<float> values(3, 7);
  parameters.Initialise(0, 1, values.data());
  EXPECT_EQ(values, std::vector<float>(3, 0));
  parameters.Initialise(1, 1, values.data());
  EXPECT_EQ(values, std::vector<float>(3, 1));
}

TEST(InitialiseTest, NormalMoments) {
  const std::vector<float> values = Draw("w", {200, 500}, 1);
  double sum = 0, squares = 0;
  for (const float x : values) sum += x, squares += static_cast<double>(x) * x;
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
}

TEST(InitialiseTest, DependsOnSeedNameAndElementAlone) {
  const std::vector<float> values = Draw("w", {10, 7}, 1);
  EXPECT_EQ(Draw("w", {10, 7}, 1), values);
  EXPECT_NE(Draw("w", {10, 7}, 2), values);
  EXPECT_NE(Draw("v", {10, 7}, 1), values);
  const std::vector<float> longer = Draw("w", {11, 7}, 1);
  EXPECT_TRUE(std::equal(values.begin(), values.end(), longer.begin()));
}

}  // namespace
}  // namespace halflife::model
