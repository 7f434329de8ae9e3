// Validation of a model config: defaults, groups of layers, and all problems listed at once.
#include "model/config/model_config.h"

#include <gmock/gmock.h>

#include "model/language_model.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModelConfig Unusual() {
  ModelConfig config = {.vocab_size = 1000,
                        .model_dim = 64,
                        .num_layers = 3,
                        .dropout = 0.1,
                        .initializer_range = 0.006,
                        .norm = NormConfig("rms_norm", {{"eps", 1e-5}}),
                        .mixer = MixerConfig("gla", {{"num_heads", 2}, {"clamp_min", -3}}),
                        .channel_mixer = ChannelMixerConfig("swiglu", {{"width", 96}})};
  config.head.tied = true;
  return config;
}

int64_t SwiGluWidth(int64_t model_dim, double ratio, int64_t width = 0) {
  const ModelConfig config = {
      .model_dim = model_dim,
      .channel_mixer = ChannelMixerConfig("swiglu", {{"ratio", ratio}, {"width", width}})};
  return Resolved(config).channel_mixer.Get<int64_t>("width");
}

TEST(ModelConfigTest, SwiGluWidthRoundsUpTo256) {
  EXPECT_EQ(SwiGluWidth(256, 4), 768);
  EXPECT_EQ(SwiGluWidth(1024, 4), 2816);
  EXPECT_EQ(SwiGluWidth(2048, 2), 2816);
  EXPECT_EQ(SwiGluWidth(2048, 4, 100), 100);
}

TEST(ModelConfigTest, DefaultsAreFine) {
  EXPECT_THAT(Problems({}), IsEmpty());
  EXPECT_THAT(Problems(Unusual()), IsEmpty());
}

TEST(ModelConfigTest, AllProblemsAtOnce) {
  const ModelConfig config = {.vocab_size = 0,
                              .model_dim = 30,
                              .num_layers = 0,
                              .dropout = 1,
                              .initializer_range = -2,
                              .norm = NormConfig("rms_norm", {{"eps", 0}}),
                              .mixer = MixerConfig("retention", {{"num_heads", 8}}),
                              .channel_mixer = ChannelMixerConfig("swiglu", {{"width", -1}})};
  EXPECT_THAT(
      Problems(config),
      ElementsAre(
          "model: vocab_size is 0. Use at least 1.", "model: num_layers is 0. Use at least 1.",
          "model: dropout is 1. Use a number in [0, 1).",
          "model: initializer_range is -2. Use a number above 0 (0.02 is usual).",
          "norm rms_norm: eps is 0. Use a number above 0 (1e-6 is usual).",
          HasSubstr("mixer retention: num_heads 8 must divide the key width 30"),
          HasSubstr("channel_mixer swiglu: option width is -1. Use an integer of at least 0")));
  EXPECT_HL_ERROR(LanguageModel(config), ExitCode::kUsage, "vocab_size is 0", "width is -1");
}

ModelConfig Hybrid() {
  ModelConfig config = Unusual();
  config.channel_mixer.Set("bias", true);
  config.hybrid = {{.layers = {1}, .mixer = MixerConfig("softmax", {{"num_heads", 4}})}};
  return config;
}

TEST(ModelConfigTest, LayersHaveTheirGroupsParts) {
  ModelConfig config = Hybrid();
  EXPECT_EQ(config.mixer_of(0).name(), "gla");
  EXPECT_EQ(config.mixer_of(1).name(), "softmax");
  config.num_layers = 7;
  config.hybrid = {{.every = 3, .first = 2, .mixer = MixerConfig("softmax")},
                   {.layers = {0, 2}, .channel_mixer = ChannelMixerConfig("identity")}};
  std::string mixers, channel_mixers;
  for (int64_t layer = 0; layer < 7; ++layer) {
    mixers += config.mixer_of(layer).name()[0];
    channel_mixers += config.channel_mixer_of(layer).name()[0];
  }
  EXPECT_EQ(mixers, "ggsggsg");
  EXPECT_EQ(channel_mixers, "isissss");
  config.hybrid[0].block = BlockConfig("output_norm");
  config.hybrid.push_back({.layers = {0}, .block = BlockConfig("sub_ln")});
  std::string blocks;
  for (int64_t layer = 0; layer < 7; ++layer) blocks += config.block_of(layer).name()[0];
  EXPECT_EQ(blocks, "spoppop");
  EXPECT_THAT(Problems(config), IsEmpty());
  EXPECT_EQ(MixerSummary(config), "gla + softmax in 2 of 7 layers");
}

TEST(ModelConfigTest, TheLastNormMayBeAnother) {
  ModelConfig config = Unusual();
  config.final_norm = NormConfig("layer_norm", {{"eps", -1.0}});
  EXPECT_THAT(Problems(config), ElementsAre(HasSubstr("final: norm layer_norm: eps is -1")));
  config.final_norm = NormConfig("layer_norm");
  config.block = BlockConfig("post_norm");
  EXPECT_HL_ERROR(LanguageModel(config), ExitCode::kUsage,
                  "the block post_norm already ends with a norm. Remove final_norm.");
  // The last layer decides.
  config.hybrid = {{.layers = {config.num_layers - 1}, .block = BlockConfig("pre_norm")}};
  EXPECT_NO_THROW(LanguageModel{config});
}

TEST(ModelConfigTest, SummaryNamesEveryMixer) {
  EXPECT_EQ(MixerSummary(Unusual()), "gla");
  EXPECT_EQ(MixerSummary(Hybrid()), "gla + softmax in 1 of 3 layers");
  ModelConfig all = Hybrid();
  all.hybrid[0].layers = {0, 1, 2};
  EXPECT_EQ(MixerSummary(all), "softmax in 3 of 3 layers");
  ModelConfig forms = Hybrid();
  forms.hybrid[0].mixer = MixerConfig("gla", {{"num_heads", 2}});
  EXPECT_EQ(MixerSummary(forms), "gla");
}

// Sizes whose products overflow, or that do not fit into any memory, are reported before anything
// is allocated.
TEST(ModelConfigTest, SizesBeyondEveryModelAreProblems) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  ModelConfig config = Unusual();
  config.vocab_size = config.num_layers = kHuge;
  config.channel_mixer.Set("width", kHuge);
  EXPECT_THAT(
      Problems(config),
      testing::IsSupersetOf({HasSubstr("vocab_size is 1099511627776. Use at most 2147483647."),
                             HasSubstr("num_layers is 1099511627776. Use at most 16384."),
                             HasSubstr("width is 1099511627776. Use an integer of at least 0 "
                                       "and at most 16777216")}));
  EXPECT_THAT(Problems({.model_dim = kHuge}),
              ElementsAre(HasSubstr("model_dim is 1099511627776. Use at most 1048576.")));
  const auto with = [](const char* mixer, const std::vector<Assignment>& options) {
    return Problems({.mixer = MixerConfig(mixer, options)});
  };
  EXPECT_THAT(with("gla", {{"conv_size", kHuge}}),
              ElementsAre(HasSubstr("Use an integer of at least 1 and at most 16777216")));
  EXPECT_THAT(with("softmax", {{"head_dim", kHuge}}),
              ElementsAre(HasSubstr("Use an integer of at least 0 and at most 16777216")));
  EXPECT_THAT(with("softmax", {{"num_heads", 8192}, {"head_dim", 8192}}),
              ElementsAre(HasSubstr("67108864 wide. Use a width of at most 16777216.")));
  for (const char* mixer : {"gated_delta_net", "gated_delta_product", "kda"}) {
    EXPECT_THAT(with(mixer, {{"num_heads", 8192}, {"head_dim", 8192}}),
                ElementsAre(HasSubstr("67108864 wide. Use a width of at most 16777216.")))
        << mixer;
    EXPECT_THAT(with(mixer, {{"num_heads", 1}, {"num_v_heads", 8192}, {"head_dim", 8192}}),
                ElementsAre(HasSubstr("67108864 wide. Use a width of at most 16777216.")))
        << mixer;
  }
}

TEST(ModelConfigTest, HybridProblems) {
  ModelConfig config = Hybrid();
  config.hybrid.push_back({.layers = {1, 7}, .mixer = MixerConfig("softmax", {{"window", -1}})});
  config.hybrid.push_back({.layers = {}, .mixer = MixerConfig("gla")});
  config.hybrid.push_back({.layers = {2}});
  config.hybrid.push_back({.layers = {0}, .every = 2, .mixer = MixerConfig("gla")});
  EXPECT_THAT(
      Problems(config),
      ElementsAre("model: hybrid layer 7 does not exist. Use 0 to 2.",
                  HasSubstr("model: a hybrid group names no layers"),
                  HasSubstr("model: the hybrid group of layers 2 names no mixer, channel mixer or "
                            "block. Add one"),
                  HasSubstr("model: a hybrid group has both layers and every"),
                  "model: hybrid layer 1 is named twice. Name it in one group only.",
                  "model: hybrid layer 0 is named twice. Name it in one group only.",
                  HasSubstr("hybrid: mixer softmax: option window is -1")));
  config.hybrid = {
      {.layers = {1}, .block = BlockConfig("post_norm")},
      {.every = 1, .block = BlockConfig("sub_ln")},
      {.layers = {0}, .block = BlockConfig("pre_norm", {{"residual_multiplier", -1.0}})}};
  EXPECT_THAT(Problems(config),
              ElementsAre("model: hybrid layer 1 is named twice. Name it in one group only.",
                          "model: hybrid layer 0 is named twice. Name it in one group only.",
                          HasSubstr("hybrid: block pre_norm: option residual_multiplier is -1")));
  // As if num_layers of a larger recipe was reduced.
  config.hybrid = {{.layers = {}, .every = 2, .first = 5, .mixer = MixerConfig("gla")},
                   {.layers = {1}, .first = 1, .mixer = MixerConfig("softmax")}};
  EXPECT_THAT(
      Problems(config),
      ElementsAre(HasSubstr("every 2 from 5 contains none of the 3 layers. Use a first of 0 to 2."),
                  HasSubstr("layers 1 has first 1, which is only used with every. Remove it.")));
}

}  // namespace
}  // namespace halflife::model
