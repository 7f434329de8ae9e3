// The choice of an optimizer by name, and AdamW through the interface.
#include "optim/optimizer_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/expect_error.h"

namespace halflife::optim {
namespace {

using testing::ElementsAre;

TEST(OptimizerChoice, IsAdamWUnlessARecipeNamesAnother) {
  const OptimizerChoice choice;
  EXPECT_EQ(choice.name(), "adamw");
  EXPECT_THAT(choice.Make({})->state_names(), ElementsAre("m", "v"));
  EXPECT_EQ(choice.Make({})->matrix_rule(), nullptr);
}

TEST(OptimizerChoice, RefusesUnknownNames) {
  EXPECT_HL_ERROR(OptimizerChoice("adamv"), ExitCode::kUsage, "unknown optimizer 'adamv'",
                  "Use one of: adamw, muon", "did you mean 'adamw'?");
}

TEST(OptimizerChoice, CopiesOwnTheirConfig) {
  OptimizerChoice first;
  OptimizerChoice second = first;
  EXPECT_NE(&first.config(), &second.config());
  second = first;
  EXPECT_EQ(second.name(), first.name());
}

// The first update of AdamW moves each weight by the learning rate against its gradient's sign, at
// the places that the shifts give. Elements outside every range stay as they are.
TEST(AdamW, UpdatesItsRangesAtTheirPlaces) {
  const std::unique_ptr<Optimizer> adamw = OptimizerChoice("adamw").Make({.weight_decay = 0.5});
  std::vector<float> main(8, 1), grads(8, 2), m(8), v(8);
  const std::string table = adamw->Prepare({{.parameter = "matrix",
                                             .shape = {2, 2},
                                             .begin = 100,
                                             .end = 104,
                                             .weight_decay = 0.5,
                                             .main_shift = -100,
                                             .grads_shift = -98,
                                             .state_shift = -96}});
  constexpr double kLr = 0.125;
  adamw->Update({.main = main.data(),
                 .grads = grads.data(),
                 .states = {m.data(), v.data()},
                 .table = table.data(),
                 .lr = kLr,
                 .num_updates = 1});
  const auto moved = static_cast<float>(1 - kLr * 0.5 - kLr);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(main[i], i < 4 ? moved : 1.0f, 1e-6) << i;
    EXPECT_EQ(m[i] != 0, i >= 4) << i;
    EXPECT_EQ(v[i] != 0, i >= 4) << i;
  }
}

}  // namespace
}  // namespace halflife::optim
