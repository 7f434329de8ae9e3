// A recipe with files of changes, on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

TEST(Recipes, TrainRunsTheMergedRecipeThatRecipePrints) {
  const RunFixture fixture;
  std::ofstream(fixture.path("longer.textproto")) << "train { steps: 2 seed: 5 }\n";
  std::ofstream(fixture.path("other.textproto"))
      << "model { mixer { d2d {} } }\noptimizer { lr: 0.002 }\ntrain { steps: 1 }\n";
  const std::vector<std::string> configs = {
      "--config", "recipe.textproto", "--config", "longer.textproto",
      "--config", "other.textproto",  "--set",    "data.path=data"};
  const auto run = [&](const std::string& command) {
    return RunCommand(Append({kProgram, command}, configs), {.cwd = fixture.path("").string()});
  };
  const RunResult printed = ExpectExit(run("recipe"), 0);
  for (const char* line : {"\n  steps: 1\n", "\n  seed: 5\n", "\n  lr: 0.002\n", "\n    d2d {\n",
                           "\n  windows: 16\n"})  // The last value is that of the base.
    EXPECT_THAT(printed.out, HasSubstr(line));

  ExpectExit(run("train"), 0);
  const fs::path folder = fixture.path("runs/recipe+longer+other");
  ASSERT_TRUE(fs::exists(folder / "DONE")) << "the run is named after all files";
  const auto merged = [&](const fs::path& config) {
    const RunResult result =
        ExpectExit(fixture.Halflife({"recipe", "--config", config.string(), "--set",
                                     "model.vocab_size=0", "--set", "data.path=data"}),
                   0);
    return result.out;
  };
  std::ofstream(fixture.path("printed.textproto")) << printed.out;
  EXPECT_EQ(merged(folder / "config.textproto"), merged(fixture.path("printed.textproto")));
}

}  // namespace
}  // namespace halflife::test
