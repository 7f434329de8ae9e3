// Groups of parameters by name, and the messages about groups that are wrong.
#include "train/step/parameter_groups.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

const std::vector<dist::ParamSpec> kSpecs = {
    {.name = "embeddings.weight", .shape = {8, 4}, .weight_decay = true},
    {.name = "layers.0.attn.q_proj.weight", .shape = {4, 4}, .weight_decay = true},
    {.name = "layers.0.attn_norm.weight", .shape = {4}},
    {.name = "layers.1.attn.q_proj.weight", .shape = {4, 4}, .weight_decay = true}};

OptimizerConfig With(std::vector<ParameterGroup> groups) {
  OptimizerConfig config;
  config.adamw.weight_decay = 0.5;
  config.groups = std::move(groups);
  return config;
}

TEST(ParameterGroups, AreUnusedByDefault) {
  const std::vector<ParameterRule> rules = RulesOf(With({}), kSpecs);
  ASSERT_EQ(rules.size(), 4u);
  for (int param = 0; param < 4; ++param) {
    EXPECT_EQ(rules[param].weight_decay, param == 2 ? 0.0f : 0.5f);
    EXPECT_EQ(rules[param].lr_scale, 1);
    EXPECT_FALSE(rules[param].frozen);
  }
  OptimizerConfig all = With({});
  all.decay_all = true;
  EXPECT_EQ(RulesOf(all, kSpecs)[2].weight_decay, 0.5f);
}

TEST(ParameterGroups, TheFirstThatMatchesCounts) {
  const std::vector<ParameterRule> rules =
      RulesOf(With({{.match = "^layers\\.1\\.", .frozen = true},
                    {.match = "q_proj|norm", .lr_scale = 0.25, .weight_decay = 0.125},
                    {.match = ".", .lr_scale = 2}}),
              kSpecs);
  EXPECT_EQ(rules[0].lr_scale, 2);
  EXPECT_EQ(rules[0].weight_decay, 0.5f) << "as without a group";
  EXPECT_EQ(rules[1].lr_scale, 0.25f);
  EXPECT_EQ(rules[1].weight_decay, 0.125f);
  EXPECT_EQ(rules[2].weight_decay, 0.125f) << "also for a parameter that does not decay otherwise";
  EXPECT_TRUE(rules[3].frozen);
  EXPECT_EQ(rules[3].lr_scale, 1);
  EXPECT_FALSE(rules[1].frozen);
}

TEST(ParameterGroups, AreFrozenByAFactorOfZeroToo) {
  EXPECT_EQ(FrozenParameters(With({{.match = "^layers", .lr_scale = 0}}), kSpecs),
            (std::vector<bool>{false, true, true, true}));
  EXPECT_HL_ERROR(FrozenParameters(With({{.match = ".", .frozen = true}}), kSpecs),
                  ExitCode::kUsage,
                  "optimizer.group: all parameters are frozen. Train some: remove");
}

TEST(ParameterGroups, AGroupWithoutParametersNamesTheNearest) {
  EXPECT_HL_ERROR(RulesOf(With({{.match = "."}, {.match = "atn_norm"}}), kSpecs), ExitCode::kUsage,
                  "optimizer.group.1.match: 'atn_norm' is found in no parameter's name. Use a part "
                  "of a name; the nearest are layers.0.attn_norm.weight, ");
  EXPECT_HL_ERROR(RulesOf(With({{.match = "proj"}, {.match = "q_proj"}}), kSpecs), ExitCode::kUsage,
                  "optimizer.group.1.match: all parameters of 'q_proj' belong to earlier groups. "
                  "Put this group before them.");
}

RunConfig Parse(const std::string& optimizer) {
  return ParseRunConfig("data { path: \"x\" } optimizer { " + optimizer + " }", "my.textproto", {});
}

TEST(ParameterGroups, AreFieldsOfARecipe) {
  const RunConfig config =
      Parse("group { match: \"norm\" lr_scale: 0.5 weight_decay: 0 } group { match: \"q\" }");
  ASSERT_EQ(config.optimizer.groups.size(), 2u);
  EXPECT_EQ(config.optimizer.groups[0].weight_decay, 0.0);
  EXPECT_EQ(config.optimizer.groups[1].weight_decay, std::nullopt);
  EXPECT_EQ(config.optimizer.groups[1].lr_scale, 1);
  EXPECT_EQ(ToText(ParseRunConfig(ToText(config), "config.textproto", {})), ToText(config));
  const auto fields = TrajectoryFields(config);
  EXPECT_EQ(fields.at("optimizer.group.0.match"), "norm");
  EXPECT_EQ(fields.at("optimizer.group.0.lr_scale"), "0.5");
  EXPECT_EQ(fields.at("optimizer.ema_decay"), "0");
}

TEST(ParameterGroups, ValidationNamesWrongValues) {
  EXPECT_HL_ERROR(Validate(Parse("group { lr_scale: -1 weight_decay: -2 } group { match: \"(\" } "
                                 "ema_decay: 1"),
                           1),
                  ExitCode::kUsage,
                  "optimizer.group.0.match: ''. Use a part of the parameters' names, or '.' for "
                  "all of them",
                  "optimizer.group.0.lr_scale: -1. Use a number >= 0",
                  "optimizer.group.0.weight_decay: -2. Use a number >= 0",
                  "optimizer.group.1.match: '(' is no regular expression (",
                  "optimizer.ema_decay: 1. Use [0, 1) (0: no average)");
}

}  // namespace
}  // namespace halflife::train
