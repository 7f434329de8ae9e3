#include "model/mixer.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

std::unique_ptr<Mixer> Make(const std::string& name, std::map<std::string, std::string> options,
                            int64_t model_dim = 32) {
  ParameterSet parameters;
  return MakeMixer({.name = name, .options = std::move(options)},
                   {.model_dim = model_dim, .prefix = "attn.", .parameters = &parameters});
}

TEST(MixerOptionsTest, TypedWithDefaults) {
  const MixerConfig config = {.name = "m", .options = {{"a", "3"}, {"b", "-0.5"}, {"c", "false"}}};
  MixerOptions options(config, {});
  EXPECT_EQ(options.Int("a", 7), 3);
  EXPECT_EQ(options.Double("b", 1), -0.5);
  EXPECT_FALSE(options.Bool("c", true));
  EXPECT_EQ(options.Int("absent", 7), 7);
  EXPECT_EQ(options.Choice("norm", "none", {"none", "row"}), "none");
  EXPECT_NO_THROW(options.Check());
}

TEST(MixerOptionsTest, EveryProblemInOneError) {
  const MixerConfig config = {
      .name = "m", .options = {{"a", "0"}, {"b", "1.5x"}, {"c", "yes"}, {"d", "up"}, {"zz", "1"}}};
  MixerOptions options(config, {});
  options.Int("a", 7);
  options.Double("b", 2);
  options.Bool("c", true);
  options.Choice("d", "left", {"left", "right"});
  options.Require(1 > 2, "one is ", 1);
  EXPECT_HL_ERROR(options.Check(), ExitCode::kUsage,
                  "mixer m: option a is '0'; an integer of at least 1 would work (default 7)",
                  "option b is '1.5x'; a number would work (default 2)",
                  "option c is 'yes'; known: true, false (default true)",
                  "option d is 'up'; known: left, right (default left)", "mixer m: one is 1",
                  "unknown option 'zz'; known: a, b, c, d");
}

TEST(MixerOptionsTest, UnknownMixer) {
  EXPECT_HL_ERROR(Make("linear", {}), ExitCode::kUsage, "unknown mixer 'linear'",
                  "known: retention, gla, softmax");
}

TEST(MixerOptionsTest, SizesThatDoNotFit) {
  const auto code = ExitCode::kUsage;
  EXPECT_HL_ERROR(Make("retention", {{"num_heads", "3"}}), code,
                  "num_heads 3 must divide the key width 32 and the value width 64");
  EXPECT_HL_ERROR(Make("retention", {{"num_heads", "32"}}), code,
                  "key width per head 1 must be even");
  EXPECT_HL_ERROR(Make("retention", {{"num_heads", "4"}, {"num_kv_heads", "3"}}), code,
                  "num_kv_heads 3 must divide num_heads 4");
  EXPECT_HL_ERROR(Make("retention", {{"retention_norm", "row_decay"}}), code,
                  "retention_norm is 'row_decay'; known: none");
  EXPECT_HL_ERROR(Make("gla", {{"expand_k", "0.33"}}), code, "must be whole numbers");
  EXPECT_HL_ERROR(Make("gla", {{"clamp_min", "1"}}), code, "option clamp_min is 1");
  EXPECT_HL_ERROR(Make("softmax", {{"num_heads", "5"}}), code,
                  "num_heads 5 must divide model_dim 32");
  EXPECT_HL_ERROR(Make("softmax", {{"rope_theta", "0.5"}}), code, "option rope_theta is 0.5");
}

}  // namespace
}  // namespace halflife::model
