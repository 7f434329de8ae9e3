// The registry of a model's parameters and its handles.
#include "model/parameters.h"

#include <ATen/ops/empty.h>

#include "support/expect_error.h"

namespace halflife::model {
namespace {

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

TEST(ParametersTest, ALayerIsOneReaderOfASharedParameter) {
  ParameterSet parameters;
  const dist::ParamSpec spec = {.name = "a", .shape = {2}};
  const auto read_twice = [&] {
    parameters.BeginLayer();
    parameters.DeclareShared(spec, Init::Zeros());
    parameters.DeclareShared(spec, Init::Zeros());
  };
  read_twice();
  EXPECT_EQ(parameters.specs()[0].readers, 1);
  parameters.BeginLayer();
  read_twice();
  EXPECT_EQ(parameters.specs()[0].readers, 2);
}

TEST(ParametersTest, CountsItsElements) {
  ParameterSet parameters;
  parameters.Declare({.name = "a", .shape = {2, 3}}, Init::Zeros());
  EXPECT_EQ(parameters.num_elements(), 6);
  parameters.Declare({.name = "b", .shape = {4}}, Init::Ones());
  EXPECT_EQ(parameters.num_elements(), 10);
}

}  // namespace
}  // namespace halflife::model
