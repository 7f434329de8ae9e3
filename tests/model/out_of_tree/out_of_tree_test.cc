// The parts in this folder are added by one source file, one message and one line each. Recipes,
// checkpoints, training, decoding and help support them like built-in parts.
#include <ATen/core/grad_mode.h>

#include <set>
#include <string>
#include <vector>

#include "core/files.h"
#include "dist/local_communicator.h"
#include "model/language_model.h"
#include "model/sequence_parallel.h"
#include "ops/random_tensors.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/config/model_schema.h"
#include "train/config/plan.h"
#include "train/config/run_config.h"

namespace halflife::model {
namespace {

const std::string kRecipe = R"(
model {
  vocab_size: 37 model_dim: 16 num_layers: 3 initializer_range: 0.2
  mixer { toy { half_life: 4 } }
  channel_mixer { toy { activation: "gelu" bias: true } }
  positions { toy {} }
  hybrid { layers: [1] mixer { gla { num_heads: 2 } } channel_mixer { toy {} } }
  block { sub_ln {} }
}
)";

train::RunConfig Recipe(const std::vector<std::string>& overrides = {}) {
  return train::ParseRunConfig(kRecipe, "my.textproto", overrides);
}

TEST(OutOfTree, RecipesKnowThem) {
  const ModelConfig config = Recipe().model;
  EXPECT_EQ(config.mixer.name(), "toy");
  EXPECT_EQ(config.mixer.Get<double>("half_life"), 4);
  EXPECT_EQ(config.mixer.Get<int64_t>("num_heads"), 4) << "the default";
  EXPECT_EQ(config.channel_mixer.Get<std::string>("activation"), "gelu");
  EXPECT_EQ(config.positions.Get<int64_t>("period"), 8);
  EXPECT_EQ(MixerSummary(config), "toy + gla in 1 of 3 layers");
  EXPECT_TRUE(Problems(config).empty());
}

TEST(OutOfTree, OverridesKnowThem) {
  const auto set = [](const std::vector<std::string>& overrides) {
    return train::ParseRunConfig("", "my.textproto", overrides).model;
  };
  EXPECT_EQ(set({"model.mixer=toy"}).mixer, MixerConfig("toy"));
  EXPECT_EQ(set({"model.mixer.toy.half_life=3"}).mixer.Get<double>("half_life"), 3);
  EXPECT_EQ(set({"model.positions=toy", "model.positions.toy.period=2"}).positions,
            PositionsConfig("toy", {{"period", 2}}));
  EXPECT_HL_ERROR(set({"model.mixer=tyo"}), ExitCode::kUsage, "'tyo' is not a variant of",
                  "did you mean 'toy'?");
  EXPECT_HL_ERROR(set({"model.mixer.toy.halflife=3"}), ExitCode::kUsage,
                  "did you mean 'half_life'?");
}

TEST(OutOfTree, WrongOptionsAreReportedTogether) {
  ModelConfig config = Recipe({"model.mixer.toy.half_life=0", "model.mixer.toy.num_heads=3"}).model;
  config.channel_mixer.Set("activation", "sine");
  const std::string problems = Join(Problems(config), "\n");
  for (const char* line : {"mixer toy: option half_life is 0. Use a number of tokens above 0.",
                           "mixer toy: num_heads 3 must divide model_dim 16",
                           "channel_mixer toy: option activation is 'sine'; known: none, "})
    EXPECT_THAT(problems, testing::HasSubstr(line));
}

TEST(OutOfTree, RunFoldersAndCheckpointsKeepThem) {
  const train::RunConfig config = Recipe({"model.positions.toy.period=5"});
  const std::string text = train::ToText(config);
  EXPECT_EQ(train::ToText(train::ParseRunConfig(text, "config.textproto", {})), text);
  const ModelConfig loaded = ModelConfigFromJson(ToJson(config.model));
  EXPECT_EQ(ToJson(loaded), ToJson(config.model));
  EXPECT_EQ(loaded.mixer, config.model.mixer);
  EXPECT_EQ(loaded.positions, config.model.positions);
}

at::Tensor Tokens(uint64_t seed) { return (test::Uniform({4, 30}, seed) * 37.0).to(at::kLong); }

TEST(OutOfTree, AModelOfThemLearns) {
  LanguageModel model(Recipe().model);
  model.BindOwnMemory(1, /*requires_grad=*/true);
  const auto slice = SequenceSlice::Contiguous(4, 30, 0, at::kCPU);
  const at::Tensor tokens = Tokens(1), targets = Tokens(2);
  const auto step = [&] {  // One step of gradient descent; returns the loss before it.
    const at::Tensor loss = model.Loss(tokens, targets, {.slice = &slice}).objective / 120;
    loss.backward();
    const at::NoGradGuard no_grad;
    for (int i = 0; i < model.parameters().size(); ++i) {
      at::Tensor parameter = model.parameters().tensor(i);
      parameter.sub_(parameter.grad(), 0.1);
      parameter.mutable_grad().zero_();
    }
    return loss.item<double>();
  };
  const double first = step();
  double last = first;
  for (int i = 0; i < 60; ++i) last = step();
  EXPECT_LT(last, 0.8 * first) << "targets to learn by heart";
}

// Returns the losses of ten steps of gradient descent on the delta rule. Rows have several
// documents and are shared by `num_ranks` ranks.
std::vector<double> LossesOfDeltaRule(int num_ranks) {
  constexpr int kSteps = 10;
  const at::Tensor tokens = Tokens(1), targets = Tokens(2);
  const auto whole =
      SequenceSlice::Packed(4, 30, std::vector<int32_t>{0, 7, 30, 41, 60, 75, 90, 120}, at::kCPU);
  std::vector<double> losses;
  dist::LocalWorld::Run(num_ranks, [&](dist::Communicator& comm) {
    LanguageModel model(Recipe({"model.mixer=toy_delta"}).model);
    model.BindOwnMemory(1, /*requires_grad=*/true);
    const SequenceParallel parallel = {.group = MakeSegmentGroup(comm), .lengths = {}};
    for (int step = 0; step < kSteps; ++step) {
      const SequenceSlice slice = num_ranks == 1 ? whole : parallel.SliceOf(whole);
      const auto own = [&](const at::Tensor& x) {
        return num_ranks == 1 ? x : parallel.TokensOf(x);
      };
      const at::Tensor loss =
          model.Loss(own(tokens), own(targets), {.slice = &slice}).objective / 120;
      loss.backward();
      const auto sum = [&](const at::Tensor& x) {
        return parallel.group->AllGather(x, "sum").sum(0);
      };
      const at::NoGradGuard no_grad;
      const double total = sum(loss.detach().view({1})).item<double>();
      if (comm.rank() == 0) losses.push_back(total);
      for (int i = 0; i < model.parameters().size(); ++i) {
        at::Tensor parameter = model.parameters().tensor(i);
        parameter.sub_(sum(parameter.grad()), 0.02);
        parameter.mutable_grad().zero_();
      }
    }
    parallel.group->Settle();
  });
  return losses;
}

// A mixer that is made of LibTorch operations and has a matrix transition trains on any number of
// ranks.
TEST(OutOfTree, ADeltaRuleTrainsAlikeOnRanksThatShareRows) {
  const std::vector<double> one = LossesOfDeltaRule(1);
  EXPECT_LT(one.back(), one.front());
  for (const int num_ranks : {2, 3}) {
    const std::vector<double> got = LossesOfDeltaRule(num_ranks);
    // fp32 sums in another order. The updates are small: large ones amplify the differences.
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(got[i] / one[i], 1, 1e-6) << "step " << i << " on " << num_ranks << " ranks";
  }
}

// Rows may have the position ids of longer texts, which this table supports.
TEST(OutOfTree, ATableOfThemReadsPositionIds) {
  const train::RunConfig config =
      Recipe({"data.path=ds", "data.seq_len=30", "data.positions=randomised",
              "data.positions_length=64", "model.positions.toy.period=40"});
  EXPECT_NO_THROW(train::Validate(config, 1));
  LanguageModel model(config.model);
  EXPECT_NO_THROW(train::RequireRows(config, model, nullptr));
  model.BindOwnMemory(1, /*requires_grad=*/false);
  const at::NoGradGuard no_grad;
  SequenceSlice slice = SequenceSlice::Contiguous(4, 30, 0, at::kCPU);
  const at::Tensor own = model.Hidden(Tokens(1), {.slice = &slice});
  slice.given_position_ids = slice.positions * 2;
  EXPECT_GT((model.Hidden(Tokens(1), {.slice = &slice}) - own).abs().max().item<double>(), 1e-2);
}

// fp32, logits of order 1, states summed in another order.
TEST(OutOfTree, AModelOfThemDecodes) {
  LanguageModel model(Recipe().model);
  model.BindOwnMemory(1, /*requires_grad=*/false);
  const at::NoGradGuard no_grad;
  const auto slice = SequenceSlice::Contiguous(4, 30, 0, at::kCPU);
  const at::Tensor tokens = Tokens(3);
  const at::Tensor want = model.Logits(model.Hidden(tokens, {.slice = &slice}));
  ModelState state = model.EmptyState(4);
  for (int64_t t = 0; t < 30; ++t)
    ASSERT_TRUE(test::Close(model.Step(tokens.select(1, t), state), want.select(1, t), 1e-4)) << t;
  EXPECT_TRUE(model.constant_state());
}

TEST(OutOfTree, HelpKnowsThem) {
  int num_toys = 0;
  for (const train::KindHelp& kind : train::HelpOfParts()) {
    for (const train::VariantHelp& variant : kind.variants) {
      if (variant.name != "toy") continue;
      ++num_toys;
      EXPECT_FALSE(variant.summary.empty());
      if (kind.name == kMixers.name) {
        EXPECT_EQ(variant.options[1].meaning, "tokens until a weight is halved");
      }
    }
  }
  EXPECT_EQ(num_toys, 3);
}

// docs/adding_a_mixer.md contains the code of the mixers that are tested here.
TEST(OutOfTree, TheGuideShowsTheToyMixers) {
  const auto read = [](const char* path) {
    return ReadFile(std::string(test::kSourceDir) + "/" + path, ExitCode::kInternal);
  };
  const std::string guide = read("docs/adding_a_mixer.md"),
                    messages = read("tests/model/out_of_tree/messages.proto");
  for (const char* file : {"toy_delta_mixer.cc", "toy_mixer.cc"}) {
    const std::string mixer = read((std::string("tests/model/out_of_tree/") + file).c_str());
    EXPECT_NE(guide.find("```cpp\n" + mixer + "```\n"), std::string::npos) << file;
  }
  for (const char* message : {"message ToyDeltaMixer", "message ToyMixer"}) {
    const size_t begin = messages.find(message), end = messages.find("\n}\n", begin);
    EXPECT_NE(guide.find("```proto\n" + messages.substr(begin, end + 3 - begin) + "```\n"),
              std::string::npos)
        << message;
  }
}

// A test filter that matches nothing passes, so this test checks that the suites contain the toys.
TEST(OutOfTree, TheSuitesOfTheTreeRunOnThem) {
  std::set<std::string> run;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *tests.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j)
      if (suite.GetTestInfo(j)->should_run())
        run.insert(std::string(suite.name()) + "." + suite.GetTestInfo(j)->name());
  }
  for (const char* test :
       {"Schema.StructsOfPartsAndMessagesAgree",
        "All/MixerConformance.StepsEqualTheParallelForm/toy_num_heads_2",
        "All/MixerConformance.GradientsAreFiniteDifferences/toy_half_life_0_5",
        "All/MixerConformance.GradientsAreFiniteDifferences/toy_delta_num_heads_2",
        "All/SequenceParallelMixer.EqualsWholeRowsOfDocuments/toy_delta",
        "All/SequenceParallelMixer.StrategiesGiveTheSameBits/toy_delta",
        "All/DecodeTest.PrefillAndStepsEqualTheParallelForm/toy",
        "All/EveryPart.DecodeEqualsTheParallelForm/channel_mixer_toy",
        "All/EveryPart.EveryParameterGetsAFiniteGradient/positions_toy"})
    EXPECT_TRUE(run.contains(test)) << test;
}

}  // namespace
}  // namespace halflife::model
