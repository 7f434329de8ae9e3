// Parts of a model and their options: which values are refused, and value semantics.
#include "model/config/part.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "model/mixer.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct ToyOptions : OptionsOf<ToyOptions> {
  int64_t a = 7;
  double b = 2;
  bool c = true;
  std::string d = "left";
  std::vector<Option> Fields() override {
    return {{"a", &a}, {"b", &b}, {"c", &c}, {"d", &d, {.choices = {"left", "right"}}}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    problems.Require(a < sizes.model_dim, "a is ", a);
  }
};
const PartKind kToys = {
    "toy", "small", [] {
      return std::vector<VariantInfo>{{"small", [] { return std::make_unique<ToyOptions>(); }}};
    }};

TEST(PartConfigTest, OptionsAreTyped) {
  PartConfig toy(kToys, "small", {{"a", 3}, {"b", -0.5}, {"c", false}, {"d", "right"}});
  EXPECT_EQ(toy.Get<int64_t>("a"), 3);
  EXPECT_EQ(toy.Get<double>("b"), -0.5);
  EXPECT_FALSE(toy.Get<bool>("c"));
  EXPECT_EQ(toy.Get<std::string>("d"), "right");
  toy.Set("b", 4);  // An integer is accepted as a number.
  EXPECT_EQ(toy.Get<double>("b"), 4);
  EXPECT_HL_ERROR(toy.Set("a", 1.5), ExitCode::kInternal, "toy small: option a has type int");
  EXPECT_HL_ERROR(toy.Set("e", 1), ExitCode::kInternal, "toy small has no option e");
}

TEST(PartConfigTest, CopiesAreTheirOwn) {
  const PartConfig toy(kToys, "small");
  PartConfig copy = toy;
  EXPECT_TRUE(copy == toy);
  copy.Set("a", 1);
  EXPECT_EQ(toy.Get<int64_t>("a"), 7);
  EXPECT_FALSE(copy == toy);
}

TEST(PartConfigTest, EveryProblemAtOnceWithItsDefault) {
  PartConfig toy(kToys, "small", {{"a", 0}, {"d", "up"}, {"b", std::nan("")}});
  EXPECT_THAT(toy.Resolve({.model_dim = 4}),
              ElementsAre("toy small: option a is 0. Use an integer of at least 1 (default 7).",
                          "toy small: option b is not a number. Use a number (default 2).",
                          "toy small: option d is 'up'; known: left, right (default left)"));
  toy = PartConfig(kToys, "small", {{"a", int64_t{1} << 40}});
  EXPECT_THAT(toy.Resolve({.model_dim = 4}), ElementsAre(HasSubstr("and at most 16777216")));
  toy = PartConfig(kToys, "small");
  EXPECT_THAT(toy.Resolve({.model_dim = 4}), ElementsAre("toy small: a is 7"));
  EXPECT_THAT(toy.Resolve({.model_dim = 8}), IsEmpty());
}

TEST(PartConfigTest, AnUnknownVariantListsTheKnownOnes) {
  EXPECT_HL_ERROR(MixerConfig("linear"), ExitCode::kUsage, "unknown mixer 'linear'",
                  "known: retention, gla, softmax");
  EXPECT_HL_ERROR(MixerConfig("softmaxx"), ExitCode::kUsage, "did you mean 'softmax'?");
}

TEST(MixerOptions, SizesThatDoNotFit) {
  const auto problems = [](const char* mixer, const std::vector<Assignment>& options) {
    const std::vector<std::string> lines = MixerConfig(mixer, options).Resolve({.model_dim = 32});
    return lines.empty() ? "" : lines[0];
  };
  EXPECT_THAT(problems("retention", {{"num_heads", 3}}),
              HasSubstr("num_heads 3 must divide the key width 32 and the value width 64"));
  EXPECT_THAT(problems("retention", {{"num_heads", 32}}),
              HasSubstr("key width per head 1 must be even"));
  EXPECT_THAT(problems("retention", {{"num_heads", 4}, {"num_kv_heads", 3}}),
              HasSubstr("num_kv_heads 3 must divide num_heads 4. Use a divisor of it."));
  EXPECT_THAT(problems("retention", {{"rope_theta", 1}}), HasSubstr("option rope_theta is 1"));
  EXPECT_THAT(problems("gla", {{"expand_k", 0.33}}), HasSubstr("must be whole numbers"));
  EXPECT_THAT(problems("gla", {{"clamp_min", 1}}), HasSubstr("option clamp_min is 1"));
  EXPECT_THAT(problems("gla", {{"feature_map", "gelou"}}), HasSubstr("known: none, relu"));
  EXPECT_THAT(problems("gated_delta_net", {{"num_heads", 2}, {"num_v_heads", 3}}),
              HasSubstr("num_v_heads 3 is not a multiple of num_heads 2. Use 2 or 4."));
  EXPECT_THAT(problems("gated_delta_net", {{"expand_v", 0.3}}),
              HasSubstr("head_dim 8 times expand_v 0.3 is not a whole number"));
  // 7 times the quotient is 61 only up to rounding.
  EXPECT_EQ(problems("gated_delta_net", {{"head_dim", 7}, {"expand_v", 61.0 / 7}}), "");
  EXPECT_THAT(
      problems("gated_delta_net", {{"norm_eps", -1.0}}),
      HasSubstr("option norm_eps is -1. Use a number above 0, or 0 for eps of the model's"));
  EXPECT_THAT(problems("gated_delta_net", {{"num_heads", 3}}),
              HasSubstr("num_heads 3 must divide model_dim 32. Set head_dim to use other sizes."));
  for (const double bound : {1.0, -std::numeric_limits<double>::infinity()})
    EXPECT_THAT(problems("kda", {{"lower_bound", bound}}),
                HasSubstr("Use a number below 0, for example -5, or 0 for no bound."));
  EXPECT_THAT(problems("softmax", {{"num_heads", 5}}),
              HasSubstr("num_heads 5 must divide model_dim 32. Set head_dim to use other sizes."));
  EXPECT_THAT(problems("softmax", {{"rope_theta", 0.5}}), HasSubstr("option rope_theta is 0.5"));
  EXPECT_EQ(problems("softmax", {{"rope_theta", 0}, {"num_heads", 32}}), "");
}

TEST(MixerOptions, WhatDerivesIsFilledIn) {
  MixerConfig gla("gla", {{"num_heads", 2}}), softmax("softmax", {{"num_heads", 2}});
  EXPECT_THAT(gla.Resolve({.model_dim = 64}), IsEmpty());
  EXPECT_EQ(gla.Get<int64_t>("num_kv_heads"), 2);
  EXPECT_THAT(softmax.Resolve({.model_dim = 64}), IsEmpty());
  EXPECT_EQ(softmax.Get<int64_t>("head_dim"), 32);
}

}  // namespace
}  // namespace halflife::model
