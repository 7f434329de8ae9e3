// The file of a sweep: axes, merged recipes, datasets and errors.
#include "sweep/sweep_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::sweep {
namespace {

using testing::ElementsAre;

constexpr char kTwoAxes[] = R"(
recipe: "r.textproto"
set: "train.steps=10"
axis {
  name: "mixer"
  point { label: "based" set: "model.mixer=based" set: "data.path=dataset:long" }
  point { label: "mamba" set: "model.mixer=mamba" }
}
axis { field: "train.seed" value: ["1", "2", "3"] }
dataset { name: "long" prepare: "--synthetic  mqar --seq-len 64" }
summary { metric: "val_accuracy" over: "seed" }
)";

SweepConfig Parse(const std::string& text) { return ParseSweep(text, "s.textproto", {}); }
// Parses a sweep that is complete except for `more`.
SweepConfig ParseWith(const std::string& more) {
  return Parse("recipe: \"r\" axis { field: \"train.seed\" value: [\"1\", \"2\"] } " + more);
}

TEST(SweepConfig, IsTheProductOfItsAxesTheLastFastest) {
  const SweepConfig sweep = ParseSweep(kTwoAxes, "s.textproto", {"train.device=cpu"});
  const std::vector<Trial> trials = Grid(sweep);
  ASSERT_EQ(trials.size(), 6u);
  EXPECT_EQ(trials[0].name, "mixer=based,seed=1");
  EXPECT_EQ(trials[1].name, "mixer=based,seed=2");
  EXPECT_EQ(trials[5].name, "mixer=mamba,seed=3");
  EXPECT_THAT(trials[5].labels, ElementsAre("mamba", "3"));
  EXPECT_THAT(trials[1].overrides,
              ElementsAre("train.steps=10", "train.device=cpu", "model.mixer=based",
                          "data.path=dataset:long", "train.seed=2"));
}

TEST(SweepConfig, RecipesThatAreMergedBeginAtTheFilesFolder) {
  const test::TempDir dir;
  std::ofstream(dir / "s.textproto") << "recipe: 'base.textproto' recipe: '/other/c.textproto'\n"
                                        "axis { field: 'train.seed' value: ['1', '2'] }\n";
  EXPECT_THAT(LoadSweep(dir / "s.textproto", {}).recipes,
              ElementsAre(dir / "base.textproto", "/other/c.textproto"));
  EXPECT_HL_ERROR(ParseWith("recipe: ''"), ExitCode::kUsage, "no recipe");
}

// Errors list the fields of a sweep, not those of a recipe.
TEST(SweepConfig, AnErrorInTheFileIsAboutSweeps) {
  EXPECT_HL_ERROR(ParseWith("optimizer { lr: 1 }"), ExitCode::kUsage,
                  "'optimizer' is not a field of a sweep. It is a field of a recipe");
  EXPECT_HL_ERROR(ParseWith("seeds: 3"), ExitCode::kUsage, "It has recipe, set, axis, dataset");
  EXPECT_HL_ERROR(Parse("{ 'recipe': 'r' }"), ExitCode::kUsage, "this is JSON",
                  "axis { field: \"train.seed\"");
  EXPECT_HL_ERROR(ParseWith("learning_rate: 1"), ExitCode::kUsage, "It has recipe, set");
}

TEST(SweepConfig, DatasetsAreNamedAndReplaced) {
  const SweepConfig sweep = Parse(kTwoAxes);
  EXPECT_THAT(sweep.datasets[0].words, ElementsAre("--synthetic", "mqar", "--seq-len", "64"));
  const Trial trial = Grid(sweep)[0];
  EXPECT_THAT(DatasetsOf(trial.overrides), ElementsAre("long"));
  EXPECT_THAT(WithDatasets(trial.overrides, "out/datasets"),
              ElementsAre("train.steps=10", "model.mixer=based", "data.path=out/datasets/long",
                          "train.seed=1"));
}

TEST(SweepConfig, RefusesAxesThatClash) {
  EXPECT_HL_ERROR(ParseWith(R"(axis { name: "again" field: "train.seed" value: "7" })"),
                  ExitCode::kUsage, "s.textproto", "axis 'again' sets train.seed",
                  "overwrites train.seed of axis 'seed'", "the points of one axis");
  EXPECT_HL_ERROR(ParseWith(R"(axis { field: "model.mixer.gla.num_heads" value: "2" }
                              axis { field: "model.mixer" value: "gla" })"),
                  ExitCode::kUsage, "axis 'mixer' sets model.mixer",
                  "overwrites model.mixer.gla.num_heads of axis 'num_heads'", "swap the two");
  EXPECT_HL_ERROR(ParseWith(R"(axis { name: "seed" field: "optimizer.lr" value: "1" })"),
                  ExitCode::kUsage, "two axes are called 'seed'");
  // One axis for a variant and one for its options.
  ParseWith(R"(axis { field: "model.mixer" value: "gla" }
               axis { field: "model.mixer.gla.num_heads" value: "2" })");
}

TEST(SweepConfig, RefusesASettingThatAnAxisOverrulesInEveryRun) {
  const auto with = [](const std::string& axis, const std::vector<std::string>& overrides) {
    return ParseSweep("recipe: \"r\" set: \"train.steps=10\" " + axis, "s.textproto", overrides);
  };
  const std::string seeds = R"(axis { field: "train.seed" value: ["1", "2"] })";
  EXPECT_HL_ERROR(
      with(seeds, {"train.seed=7"}), ExitCode::kUsage, "s.textproto",
      "--set train.seed=7 has no effect: every point of axis 'seed' overwrites train.seed.",
      "Leave it out, or change the values of the axis in the file.");
  const std::string mixers = R"(axis { field: "model.mixer" value: ["gla", "d2d"] })";
  EXPECT_HL_ERROR(with(mixers, {"model.mixer.gla.num_heads=2"}), ExitCode::kUsage,
                  "--set model.mixer.gla.num_heads=2 has no effect", "axis 'mixer'");
  EXPECT_HL_ERROR(with(R"(axis { field: "train.steps" value: ["5", "6"] })", {}), ExitCode::kUsage,
                  "set: train.steps=10 has no effect", "axis 'steps'");
  // Overridden in one run of two, or the later of two settings for all runs.
  with(R"(axis { name: "a" point { label: "x" set: "train.seed=1" } point { label: "y" } })",
       {"train.seed=7"});
  with(seeds, {"train.steps=20"});
}

TEST(SweepConfig, RefusesWhatMakesNoSenseAllAtOnce) {
  EXPECT_HL_ERROR(Parse(""), ExitCode::kUsage, "no recipe", "no axis", "for example axis {");
  EXPECT_HL_ERROR(ParseWith(R"(axis { name: "empty" }
                   axis { field: "a.b" value: ["1", "1"] }
                   axis { name: "p" point { label: "x/y" set: "c=1" } point { label: "z" set: "c" } })"),
                  ExitCode::kUsage, "axis 'empty' needs either a field with values, or points",
                  "axis 'b' has '1' twice", "'x/y' cannot be used in names of runs",
                  "'c' is not an assignment");
  EXPECT_HL_ERROR(ParseWith("axes {}"), ExitCode::kUsage, "s.textproto", "axes", "axis");
  EXPECT_HL_ERROR(ParseWith(R"(axis { name: "a/b" point { label: "x" set: "c=1" } })"),
                  ExitCode::kUsage, "axis 'a/b' cannot be used in names of runs");
  const std::string label(230, 'x');
  EXPECT_HL_ERROR(ParseWith("axis { name: \"a\" point { label: \"" + label + "\" set: \"c=1\" } }"),
                  ExitCode::kUsage,
                  "the longest name of a run has 239 bytes, but at most 220 are allowed");
}

TEST(SweepConfig, RefusesDatasetsThatNothingMakes) {
  EXPECT_HL_ERROR(ParseWith(R"(set: "data.path=dataset:trian"
                               dataset { name: "train" prepare: "--input x --out y" })"),
                  ExitCode::kUsage,
                  "dataset 'trian' is used, but there is no dataset entry for it. Add dataset {",
                  "did you mean 'train'", "--out is set by the sweep");
}

TEST(SweepConfig, RefusesASummaryOfWhatIsNotThere) {
  EXPECT_HL_ERROR(ParseWith(R"(summary { metric: "val_los" over: "seeds" })"), ExitCode::kUsage,
                  "over is 'seeds'", "did you mean 'seed'", "metric 'val_los'",
                  "did you mean 'val_loss'");
  EXPECT_HL_ERROR(ParseWith(R"(summary { over: "seed" line: "seed" })"), ExitCode::kUsage,
                  "axis 'seed' has two roles", "a figure needs x");
  EXPECT_HL_ERROR(ParseWith(R"(axis { name: "kind" point { label: "based" set: "a=1" } }
                               summary { x: "kind" })"),
                  ExitCode::kUsage,
                  "x is 'kind', but 'based' is not a number above 0. Use such labels");
}

}  // namespace
}  // namespace halflife::sweep
