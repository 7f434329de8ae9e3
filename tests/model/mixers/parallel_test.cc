// The mixer `parallel`: the sum of its parts, its options, and what it derives from its parts.
#include "model/mixers/parallel.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include "model/config/model_config.h"
#include "model/language_model.h"
#include "model/mixers/built_mixer.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;
using testing::ElementsAre;

constexpr int64_t kDim = 16;

MixerConfig Mamba2Part() {
  return MixerConfig("mamba2", {{"num_heads", 2}, {"head_dim", 4}, {"state_size", 3}});
}
MixerConfig SoftmaxPart() { return MixerConfig("softmax", {{"num_heads", 2}}); }

std::vector<std::string> NamesOfState(const MixerTraits& traits) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : traits.state) names.push_back(tensor.name);
  return names;
}

// Copies the parameters of part `number` to a mixer of its own.
BuiltMixer PartAlone(const BuiltMixer& all, int number, const MixerConfig& config) {
  BuiltMixer alone(config, kDim);
  for (const dist::ParamSpec& spec : alone.parameters().specs())
    alone.Set(spec.name, all[Concat(number, ".", spec.name)]);
  return alone;
}

TEST(ParallelTest, IsTheSumOfItsParts) {
  const BuiltMixer all(
      ParallelMixer({ParallelPart(Mamba2Part(), 1.5, 0.25), ParallelPart(SoftmaxPart(), 0.5, 2)}),
      kDim);
  const BuiltMixer mamba2 = PartAlone(all, 0, Mamba2Part()),
                   softmax = PartAlone(all, 1, SoftmaxPart());
  const at::Tensor x = Normal({2, 30, kDim}, 1);
  const at::Tensor want = 0.25 * mamba2.Run(1.5 * x) + 2 * softmax.Run(0.5 * x);
  EXPECT_TRUE(Close(all.Run(x), want, 1e-13));
  EXPECT_EQ(all.parameters().size(), mamba2.parameters().size() + softmax.parameters().size());
}

TEST(ParallelTest, OnePartIsThatMixer) {
  const BuiltMixer one(ParallelMixer({ParallelPart(SoftmaxPart())}), kDim);
  const at::Tensor x = Normal({1, 9, kDim}, 2);
  EXPECT_TRUE(one.Run(x).equal(PartAlone(one, 0, SoftmaxPart()).Run(x)));
}

TEST(ParallelTest, TraitsOfAllParts) {
  const BuiltMixer both(ParallelMixer({ParallelPart(Mamba2Part()), ParallelPart(SoftmaxPart())}),
                        kDim);
  const MixerTraits traits = both->traits();
  EXPECT_THAT(NamesOfState(traits), ElementsAre("0.ssm", "0.conv_tail", "1.keys", "1.values"));
  EXPECT_TRUE(traits.causal && traits.packs_documents && traits.splits_rows);
  EXPECT_TRUE(traits.takes_positions && traits.has_attention_probabilities);
  EXPECT_FALSE(traits.constant_state());
  const BuiltMixer with_hyena(
      ParallelMixer({ParallelPart(SoftmaxPart()), ParallelPart(MixerConfig("hyena"))}), kDim);
  EXPECT_FALSE(with_hyena->traits().splits_rows);
  EXPECT_EQ(with_hyena->traits().max_tokens,
            BuiltMixer(MixerConfig("hyena"), kDim)->traits().max_tokens);
}

// Scales of a log-scaled state are found behind the states of earlier parts.
TEST(ParallelTest, LogScalesOfLaterParts) {
  const MixerConfig rwkv("rwkv4");
  const MixerTraits alone = BuiltMixer(rwkv, kDim)->traits();
  const MixerTraits traits =
      BuiltMixer(ParallelMixer({ParallelPart(Mamba2Part()), ParallelPart(rwkv)}), kDim)->traits();
  for (size_t i = 0; i < alone.state.size(); ++i) {
    if (alone.state[i].log_scale >= 0) {
      EXPECT_EQ(traits.state[2 + i].log_scale, 2 + alone.state[i].log_scale);
    }
  }
}

TEST(ParallelTest, CostsAreSums) {
  const BuiltMixer both(ParallelMixer({ParallelPart(Mamba2Part()), ParallelPart(SoftmaxPart())}),
                        kDim),
      mamba2(Mamba2Part(), kDim), softmax(SoftmaxPart(), kDim);
  EXPECT_EQ(both->FlopsPerToken(64).matmul,
            mamba2->FlopsPerToken(64).matmul + softmax->FlopsPerToken(64).matmul);
  EXPECT_EQ(both->FlopsPerToken(64).mixing,
            mamba2->FlopsPerToken(64).mixing + softmax->FlopsPerToken(64).mixing);
  // Both keep the same x.
  EXPECT_EQ(
      both->ActivationBytesPerToken(64, 4),
      mamba2->ActivationBytesPerToken(64, 4) + softmax->ActivationBytesPerToken(64, 4) - 4 * kDim);
}

TEST(ParallelTest, ProblemsNameThePart) {
  ModelConfig config = {.vocab_size = 9, .model_dim = kDim, .num_layers = 1};
  config.mixer = ParallelMixer({ParallelPart(SoftmaxPart()),
                                ParallelPart(MixerConfig("gla", {{"num_heads", 0}}), HUGE_VAL)});
  EXPECT_THAT(Problems(config),
              ElementsAre(testing::HasSubstr("mixer parallel: part 1: mixer gla: option num_heads "
                                             "is 0. Use an integer of at least 1"),
                          "mixer parallel: part 1: option input_multiplier is inf. Use a finite "
                          "number (1 is usual)."));
  config.mixer = ParallelMixer({});
  EXPECT_THAT(Problems(config), ElementsAre("mixer parallel: there are no parts. Add one, for "
                                            "example parts { mixer { softmax {} } }."));
}

}  // namespace
}  // namespace halflife::model
