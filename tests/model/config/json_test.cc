// The JSON form of a model config in checkpoints, in today's version and the previous one.
#include <gmock/gmock.h>

#include <cmath>

#include "model/config/model_config.h"
#include "model/mixers/parallel.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using testing::HasSubstr;

ModelConfig EveryKindOfValue() {
  ModelConfig config = {.vocab_size = 1000,
                        .model_dim = 64,
                        .num_layers = 5,
                        .dropout = 0.1,
                        .initializer_range = 0.006,
                        .positions = PositionsConfig("learned", {{"max_positions", 33}}),
                        .block = BlockConfig("post_norm", {{"deep_norm", true}}),
                        .norm = NormConfig("layer_norm", {{"eps", 1e-5}}),
                        .mixer = MixerConfig("gla", {{"num_heads", 2}, {"feature_map", "silu"}}),
                        .channel_mixer = ChannelMixerConfig("mlp", {{"activation", "relu2"}})};
  config.initializer = "fan_in";
  config.embedding.norm = true;
  config.head.tied = true;
  config.head.logit_scale = 0.25;
  config.final_norm = NormConfig("rms_norm", {{"eps", 1e-3}});
  config.embedding.scale = 0.1;
  config.hybrid = {{.layers = {1}, .mixer = MixerConfig("softmax", {{"window", 7}})},
                   {.every = 2, .channel_mixer = ChannelMixerConfig("identity")},
                   {.layers = {2}, .block = BlockConfig("output_norm")}};
  return config;
}

TEST(ModelJson, RoundTrip) {
  const ModelConfig config = EveryKindOfValue(), back = ModelConfigFromJson(ToJson(config));
  EXPECT_EQ(ToJson(back), ToJson(config));
  EXPECT_EQ(back.vocab_size, 1000);
  EXPECT_EQ(back.initializer_range, 0.006);
  EXPECT_EQ(back.initializer, "fan_in");
  EXPECT_TRUE(back.embedding.norm);
  EXPECT_EQ(back.embedding.scale, 0.1);
  EXPECT_TRUE(back.head.tied);
  EXPECT_EQ(back.head.logit_scale, 0.25);
  EXPECT_TRUE(back.positions == config.positions);
  EXPECT_TRUE(back.block == config.block);
  EXPECT_TRUE(back.norm == config.norm);
  EXPECT_TRUE(back.final_norm == config.final_norm);
  EXPECT_TRUE(back.mixer == config.mixer);
  EXPECT_TRUE(std::isinf(back.mixer.Get<double>("clamp_min"))) << "JSON itself has no infinity";
  EXPECT_TRUE(back.channel_mixer == config.channel_mixer);
  EXPECT_EQ(back.mixer_of(1).Get<int64_t>("window"), 7);
  EXPECT_EQ(back.channel_mixer_of(4).name(), "identity");
  EXPECT_EQ(back.block_of(2).name(), "output_norm");
}

TEST(ModelJson, PartsInsideAPart) {
  ModelConfig config = {.vocab_size = 9, .model_dim = 32, .num_layers = 2};
  config.mixer = ParallelMixer(
      {ParallelPart(MixerConfig("mamba2", {{"state_size", 8}}), 1.5),
       ParallelPart(ParallelMixer({ParallelPart(MixerConfig("gla", {{"num_heads", 2}}))}), 1,
                    0.5)});
  const ModelConfig back = ModelConfigFromJson(ToJson(config));
  EXPECT_EQ(ToJson(back), ToJson(config));
  EXPECT_TRUE(back.mixer == config.mixer);
  const std::vector<ParallelPart>& parts = PartsOfParallel(back.mixer);
  ASSERT_EQ(parts.size(), 2);
  EXPECT_EQ(parts[0].input_multiplier, 1.5);
  EXPECT_EQ(parts[1].output_multiplier, 0.5);
  EXPECT_EQ(PartsOfParallel(parts[1].mixer)[0].mixer.Get<int64_t>("num_heads"), 2);
  // One value inside differs.
  std::vector<ParallelPart> others = parts;
  others[0].mixer.Set("state_size", 9);
  EXPECT_FALSE(back.mixer == ParallelMixer(others));
  others.pop_back();
  EXPECT_FALSE(back.mixer == ParallelMixer(others));
}

// Options that are newer than a checkpoint get their defaults.
TEST(ModelJson, AbsentOptionsKeepTheirDefaults) {
  const ModelConfig config = ModelConfigFromJson(
      R"({"vocab_size": 9, "model_dim": 32, "num_layers": 1, "dropout": 0,
          "initializer_range": 0.02, "mixer": {"softmax": {"num_heads": 2}}})");
  EXPECT_EQ(config.mixer.Get<double>("rope_theta"), 10000);
  EXPECT_EQ(config.block.name(), "pre_norm");
  EXPECT_EQ(config.initializer, "normal");
  EXPECT_FALSE(config.embedding.norm);
}

// Replaces the first `from` in the JSON of a valid config.
std::string Edited(const std::string& from, const std::string& to) {
  std::string text = ToJson(EveryKindOfValue());
  const size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

TEST(ModelJson, IsReadStrictly) {
  const auto code = ExitCode::kNoUsableCheckpoint;
  EXPECT_HL_ERROR(ModelConfigFromJson("{]"), code, "not JSON");
  EXPECT_HL_ERROR(ModelConfigFromJson("[1]"), code, "is not an object");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("model_dim", "model_width")), code,
                  "lacks 'model_dim'");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"dropout\"", "\"more\": 1, \"dropout\"")), code,
                  "keys, of which this program knows");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"num_layers\": 5", "\"num_layers\": 3.5")), code,
                  "'num_layers', which is not an integer");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"tied\": true", "\"tied\": 1")), code,
                  "head has 'tied', which is not of type bool");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"num_heads\"", "\"heads\"")), code,
                  "has 'heads', which this program does not know");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("\"gla\"", "\"glas\"")), code, "mixer is 'glas'",
                  "did you mean 'gla'?");
  EXPECT_HL_ERROR(ModelConfigFromJson(Edited("0.1", "7.5")), code, "dropout is 7.5");
}

}  // namespace
}  // namespace halflife::model
