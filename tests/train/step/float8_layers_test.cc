// Which weights of which models are multiplied in FP8, what they cost, and what is refused.
#include "train/step/float8_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "model/language_model.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/config/small_recipe.h"
#include "train/plan/memory_plan.h"

namespace halflife::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Returns the names of a block's FP8 weights, without the block's prefix.
std::vector<std::string> NamesOfFloat8(const RunConfig& config) {
  const model::LanguageModel model(config.model);
  const std::vector<dist::ParamSpec>& specs = model.parameters().specs();
  std::vector<std::string> names;
  for (const int param : FindFloat8Weights(config.train, specs)) {
    const std::string& name = specs[static_cast<size_t>(param)].name;
    constexpr std::string_view kBlock = "layers.1.";
    if (name.starts_with(kBlock)) names.push_back(name.substr(kBlock.size()));
  }
  return names;
}

std::vector<std::string> With(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"train.precision=fp8", "train.fp8.min_width=16"});
  return settings;
}

TEST(Float8Layers, AreTheLargeProjections) {
  EXPECT_THAT(NamesOfFloat8(SmallRecipe(With({}))),
              ElementsAre("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight",
                          "attn.g_proj.weight", "attn.o_proj.weight", "mlp.gate_proj.weight",
                          "mlp.up_proj.weight", "mlp.down_proj.weight"));
  // q and k have 32 outputs.
  EXPECT_THAT(NamesOfFloat8(SmallRecipe(With({"train.fp8.min_width=64"}))),
              ElementsAre("attn.v_proj.weight", "attn.g_proj.weight", "attn.o_proj.weight",
                          "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"));
  EXPECT_THAT(NamesOfFloat8(SmallRecipe({"train.precision=bf16", "train.fp8.min_width=16"})),
              ElementsAre());
}

// LibTorch's scaled product requires both widths of a weight to be multiples of 16.
TEST(Float8Layers, HaveWidthsOfMultiplesOf16) {
  const auto names = [](const std::string& width) {
    return NamesOfFloat8(SmallRecipe(
        With({"model.channel_mixer=swiglu", "model.channel_mixer.swiglu.width=" + width})));
  };
  EXPECT_THAT(names("208"), testing::IsSupersetOf({"mlp.gate_proj.weight", "mlp.up_proj.weight",
                                                   "mlp.down_proj.weight"}));
  EXPECT_THAT(names("200"), Not(testing::Contains(HasSubstr("mlp"))));
  EXPECT_THAT(names("200"), testing::Contains("attn.o_proj.weight"));
}

// At the default width, all eight matrices of each layer of the 1.3B models, and all but q and k
// (512 outputs) at 340M.
TEST(Float8Layers, AreTakenByTheRecipesOfHopper) {
  struct Recipe {
    const char *name, *described;
  };
  for (const Recipe& recipe : {Recipe{"gla_1.3b", "192 matrices, 90.3 % of the parameters"},
                               Recipe{"gla_340m", "144 matrices, "}}) {
    RunConfig config = LoadRunConfig(std::filesystem::path(test::kSourceDir) / "launch/recipes" /
                                         (std::string(recipe.name) + ".textproto"),
                                     {"train.precision=fp8", "model.vocab_size=32000"});
    const model::LanguageModel model(config.model);
    EXPECT_THAT(DescribeFloat8(config.train, model.parameters().specs()),
                testing::StartsWith(recipe.described));
  }
}

// HGRN2's f_proj is a decay. Low-rank gates and the gates of delta rules stay in bf16.
TEST(Float8Layers, AreDeclaredByTheMixers) {
  EXPECT_THAT(NamesOfFloat8(SmallRecipe(With({"model.mixer=hgrn2", "model.channel_mixer=mlp"}))),
              ElementsAre("attn.q_proj.weight", "attn.i_proj.weight", "attn.o_proj.weight",
                          "mlp.up_proj.weight", "mlp.down_proj.weight"));
  EXPECT_THAT(NamesOfFloat8(SmallRecipe(With({"model.mixer=mamba2"}))),
              ElementsAre("attn.out_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
                          "mlp.down_proj.weight"));
}

TEST(Float8Layers, LeaveOutWhatBecomesADecayOrAGate) {
  for (const char* mixer : {"hgrn2", "gated_delta_net", "kda", "mamba2", "rwkv7"}) {
    SCOPED_TRACE(mixer);
    for (const std::string& name :
         NamesOfFloat8(SmallRecipe(With({std::string("model.mixer=") + mixer}))))
      for (const char* other : {"f_proj", "a_proj", "b_proj", "in_proj", "g_proj.0", "g_proj.1"})
        EXPECT_THAT(name, Not(HasSubstr(other)));
  }
}

TEST(Float8Layers, TheirCopiesAreInThePlan) {
  const auto copies = [](const std::string& device, int stage) {
    const auto bytes = [&](const char* precision) {
      RunConfig config = SmallRecipe({"train.fp8.min_width=64"});
      config.train.precision = precision;
      config.train.device = device;
      config.parallel.zero_stage = stage;
      const model::LanguageModel model(config.model);
      return PlanMemory(config, model, 4).compute_copy;
    };
    return bytes("fp8") - bytes("bf16");
  };
  const double elements = 2 * (3 * 64 * 64 + 3 * 64 * 256);
  EXPECT_DOUBLE_EQ(copies("cpu", 1), 4 * elements);
  EXPECT_DOUBLE_EQ(copies("cuda", 1), 2 * elements);
  EXPECT_DOUBLE_EQ(copies("cuda", 3), 0);
  const RunConfig config = SmallRecipe(With({}));
  const model::LanguageModel model(config.model);
  EXPECT_EQ(DescribeFloat8(config.train, model.parameters().specs()).substr(0, 12), "16 matrices,");
}

TEST(Float8Layers, RefusalsSayWhatToDo) {
  const auto require = [](const std::vector<std::string>& settings, int capability) {
    const RunConfig config = SmallRecipe(settings);
    const model::LanguageModel model(config.model);
    RequireFloat8(config, model.parameters().specs(), capability);
  };
  require(With({}), 0);
  require(With({}), 89);
  require(With({}), 90);
  require({"train.precision=bf16"}, 80);
  EXPECT_HL_ERROR(require(With({}), 80), ExitCode::kUsage,
                  "train.precision is 'fp8', but this GPU, of compute capability 8.0, has no FP8 "
                  "matrix units. Use --set train.precision=bf16");
  EXPECT_HL_ERROR(require({"train.precision=fp8"}, 90), ExitCode::kUsage,
                  "at least train.fp8.min_width, 1024. Use --set train.precision=bf16, or a "
                  "smaller train.fp8.min_width.");
  EXPECT_HL_ERROR(Validate(SmallRecipe(With({"lora.rank=4"})), 1), ExitCode::kUsage,
                  "train.precision: fp8. Use bf16 with lora.rank above 0");
  EXPECT_HL_ERROR(Validate(SmallRecipe(With({"train.fp8.min_width=8"})), 1), ExitCode::kUsage,
                  "train.fp8.min_width: 8. Use a number >= 16");
  EXPECT_HL_ERROR(
      Validate(SmallRecipe({"train.precision=bf16", "train.fp8.min_width=96"}), 1),
      ExitCode::kUsage,
      "train.fp8.min_width: 96. Use 1024 (the default) with train.precision bf16, which multiplies "
      "nothing in FP8, or train.precision fp8");
}

}  // namespace
}  // namespace halflife::train
