#include <gmock/gmock.h>

#include "model/language_model.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModelConfig Unusual() {
  return {.vocab_size = 1000,
          .model_dim = 64,
          .num_layers = 3,
          .mlp_dim = 96,
          .mlp_ratio = 2.5,
          .norm_eps = 1e-5,
          .tie_embeddings = true,
          .dropout = 0.1,
          .initializer_range = 0.006,
          .mixer = {.name = "gla", .options = {{"num_heads", "2"}, {"clamp_min", "-3"}}}};
}

TEST(ModelConfigTest, MlpWidthRoundsUpTo256) {
  EXPECT_EQ((ModelConfig{.model_dim = 256, .mlp_ratio = 4}).resolved_mlp_dim(), 768);
  EXPECT_EQ((ModelConfig{.model_dim = 1024, .mlp_ratio = 4}).resolved_mlp_dim(), 2816);
  EXPECT_EQ((ModelConfig{.model_dim = 2048, .mlp_ratio = 2}).resolved_mlp_dim(), 2816);
  EXPECT_EQ((ModelConfig{.model_dim = 2048, .mlp_dim = 100}).resolved_mlp_dim(), 100);
}

TEST(ModelConfigTest, DefaultsAreFine) {
  EXPECT_THAT(Problems({}), IsEmpty());
  EXPECT_THAT(Problems(Unusual()), IsEmpty());
}

TEST(ModelConfigTest, AllProblemsAtOnce) {
  const ModelConfig config = {
      .vocab_size = 0,
      .model_dim = 30,
      .num_layers = 0,
      .mlp_dim = -1,
      .norm_eps = 0,
      .dropout = 1,
      .initializer_range = -2,
      .mixer = {.name = "retention", .options = {{"num_heads", "four"}, {"heads", "4"}}}};
  EXPECT_THAT(
      Problems(config),
      ElementsAre("model: vocab_size is 0; at least 1 would work",
                  "model: num_layers is 0; at least 1 would work",
                  "model: mlp_dim is -1; a width would work, or 0 to derive it from mlp_ratio",
                  "model: norm_eps is 0; a number above 0 would work (1e-6 is usual)",
                  "model: dropout is 1; a number in [0, 1) would work",
                  "model: initializer_range is -2; a number above 0 would work (0.02 is usual)",
                  HasSubstr("option num_heads is 'four'; an integer of at least 1"),
                  HasSubstr("num_heads 8 must divide the key width 30"),
                  HasSubstr("unknown option 'heads'; known: expand_k, expand_v, num_heads")));
  EXPECT_HL_ERROR(LanguageModel(config), ExitCode::kUsage, "vocab_size is 0", "unknown option");
}

TEST(ModelConfigTest, UnknownMixerListsTheKnownOnes) {
  EXPECT_THAT(Problems({.mixer = {.name = "retnet", .options = {}}}),
              ElementsAre(HasSubstr("unknown mixer 'retnet'; known: retention, gla, softmax")));
}

TEST(ModelConfigTest, JsonRoundTrip) {
  const ModelConfig config = Unusual(), back = ModelConfigFromJson(ToJson(config));
  EXPECT_EQ(ToJson(back), ToJson(config));
  EXPECT_EQ(back.vocab_size, 1000);
  EXPECT_EQ(back.initializer_range, 0.006);
  EXPECT_TRUE(back.tie_embeddings);
  EXPECT_EQ(back.mixer.options, config.mixer.options);
}

ModelConfig Hybrid() {
  ModelConfig config = Unusual();
  config.mlp_bias = true;
  config.hybrid = {{.layers = {1}, .mixer = {.name = "softmax", .options = {{"num_heads", "4"}}}}};
  return config;
}

TEST(ModelConfigTest, HybridLayersSurviveJson) {
  const ModelConfig back = ModelConfigFromJson(ToJson(Hybrid()));
  EXPECT_EQ(ToJson(back), ToJson(Hybrid()));
  EXPECT_TRUE(back.mlp_bias);
  EXPECT_EQ(back.mixer_of(0).name, "gla");
  EXPECT_EQ(back.mixer_of(1).name, "softmax");
  EXPECT_EQ(back.mixer_of(2).name, "gla");
}

TEST(ModelConfigTest, SummaryNamesEveryMixer) {
  EXPECT_EQ(MixerSummary(Unusual()), "gla");
  EXPECT_EQ(MixerSummary(Hybrid()), "gla + softmax in 1 of 3 layers");
  ModelConfig all = Hybrid();
  all.hybrid[0].layers = {0, 1, 2};
  EXPECT_EQ(MixerSummary(all), "softmax in 3 of 3 layers");
}

// Sizes whose products would overflow, or that no memory holds, are problems and not allocations.
TEST(ModelConfigTest, SizesBeyondEveryModelAreProblems) {
  ModelConfig config = Unusual();
  config.vocab_size = int64_t{1} << 40;
  config.num_layers = int64_t{1} << 40;
  config.mlp_dim = int64_t{1} << 40;
  EXPECT_THAT(Problems(config),
              testing::IsSupersetOf({HasSubstr("vocab_size is 1099511627776; at most 2147483647"),
                                     HasSubstr("num_layers is 1099511627776; at most 16384"),
                                     HasSubstr("mlp_dim is 1099511627776; at most 16777216")}));
  EXPECT_THAT(Problems({.model_dim = int64_t{1} << 40}),
              ElementsAre(HasSubstr("model_dim is 1099511627776; at most 1048576")));
  const auto with = [](const char* mixer, const char* option) {
    return Problems({.mixer = {.name = mixer, .options = {{option, "4611686018427387904"}}}});
  };
  EXPECT_THAT(with("gla", "conv_size"), ElementsAre(HasSubstr("at most 16777216 would work")));
  EXPECT_THAT(with("gla", "num_heads"), testing::Contains(HasSubstr("at most 16777216")));
  EXPECT_THAT(with("softmax", "head_dim"), testing::Contains(HasSubstr("at most 16777216")));
  EXPECT_THAT(Problems({.mixer = {.name = "softmax",
                                  .options = {{"num_heads", "8192"}, {"head_dim", "8192"}}}}),
              ElementsAre(HasSubstr("67108864 wide; at most 16777216 would work")));
}

// A checkpoint that was written before these fields existed compares equal to one written now.
TEST(ModelConfigTest, DefaultsOfLaterFieldsAreNotWritten) {
  EXPECT_THAT(ToJson(Unusual()), testing::Not(HasSubstr("mlp_bias")));
  EXPECT_THAT(ToJson(Unusual()), testing::Not(HasSubstr("hybrid")));
}

TEST(ModelConfigTest, HybridProblems) {
  ModelConfig config = Hybrid();
  config.hybrid.push_back(
      {.layers = {1, 7}, .mixer = {.name = "softmax", .options = {{"heads", "2"}}}});
  config.hybrid.push_back({.layers = {}, .mixer = {.name = "gla", .options = {}}});
  EXPECT_THAT(Problems(config),
              ElementsAre("model: hybrid layer 1 is named twice",
                          "model: hybrid layer 7; 0 to 2 would work",
                          HasSubstr("hybrid: mixer softmax: unknown option 'heads'"),
                          "model: a hybrid group with mixer gla names no layers"));
}

TEST(ModelConfigTest, ResolvedOptionsHoldTheDefaults) {
  const auto options = ResolvedOptions({.name = "gla", .options = {{"num_heads", "2"}}}, 64);
  EXPECT_EQ(options.at("num_heads"), "2");
  EXPECT_EQ(options.at("num_kv_heads"), "2");
  EXPECT_EQ(options.at("expand_k"), "0.5");
  EXPECT_EQ(options.at("clamp_min"), "-inf");
  EXPECT_EQ(options.at("use_short_conv"), "false");
}

// Replaces the first `from` in the JSON of a good configuration.
std::string Edited(const std::string& from, const std::string& to) {
  std::string text = ToJson(Unusual());
  const size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

TEST(ModelConfigTest, JsonIsReadStrictly) {
  const auto code = ExitCode::kNoUsableCheckpoint;
  EXPECT_HL_ERROR(ModelConfigFromJson("{]"), code, "not JSON");
  EXPECT_HL_ERROR(ModelConfigFromJson("[1]"), code, "is not an object");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("model_dim", "model_width")), code,
                  "lacks 'model_dim'");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"dropout\"", "\"more\": 1, \"dropout\"")), code,
                  "has 11 keys, of which this program knows 10");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"num_layers\": 3", "\"num_layers\": 3.5")), code,
                  "'num_layers' that is not an integer");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("true", "1")), code,
                  "'tie_embeddings' that is not true or false");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"-3\"", "-3")), code,
                  "option 'clamp_min' that is not a string");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"gla\"", "\"glas\"")), code, "unknown mixer 'glas'");
}

}  // namespace
}  // namespace halflife::model
