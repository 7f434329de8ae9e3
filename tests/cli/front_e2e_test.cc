// The `halflife` front end, before it starts the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/program_test.h"
#include "support/temp_dir.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

// Therefore --version, --help and completion answer immediately.
TEST(Front, LoadsNeitherLibTorchNorMpi) {
  const RunResult libraries = ExpectExit(RunCommand({"ldd", kProgram}), 0);
  for (const char* heavy : {"torch", "libmpi", "hdf5", "protobuf"})
    EXPECT_THAT(libraries.out, Not(HasSubstr(heavy)));
}

TEST(Front, PrintsItsCommitAndLibraries) {
  const RunResult result = ExpectExit(RunCommand({kProgram, "--version"}), 0);
  EXPECT_THAT(result.out, testing::ContainsRegex("^halflife 0\\.[0-9]+\\.[0-9]+ [0-9a-f]{12}"));
  EXPECT_THAT(result.out,
              testing::ContainsRegex("built with LibTorch 2\\.[0-9.]+, (no )?CUDA.*HDF5 1"));
}

// Without the engine, it still runs commands that do not need it, and reports the missing file
// otherwise.
TEST(Front, SaysWhereItsEngineBelongs) {
  const TempDir dir;
  fs::copy_file(kProgram, dir / "halflife");
  const auto run = [&](const std::vector<std::string>& words) {
    return RunCommand(Append({dir / "halflife"}, words));
  };
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--version"},
                                                {"--help"},
                                                {"train", "--help"},
                                                {"completion", "bash"}}) {
    const RunResult result = ExpectExit(run(words), 0);
    EXPECT_FALSE(result.out.empty());
  }
  ExpectExit(run({"trian"}), 2);
  ExpectExit(run({"recipe"}), 4, {"halflife-engine", "must be in the folder of"});
}

// A link in PATH leads to the folder that contains both programs.
TEST(Front, StartsThroughALink) {
  const TempDir dir;
  fs::create_symlink(kProgram, dir / "halflife");
  const RunResult result = ExpectExit(RunCommand({dir / "halflife", "recipe"}), 0);
  EXPECT_THAT(result.out, HasSubstr("retention {"));
}

// The explanations are comments of at most 100 columns, so the text is the same recipe.
TEST(Front, ExplainsARecipe) {
  const std::vector<std::string> plain = {kProgram, "recipe", "--set", "model.mixer=gla"};
  std::vector<std::string> explained = plain;
  explained.emplace_back("--explain");
  const RunResult result = ExpectExit(RunCommand(explained), 0);
  EXPECT_THAT(result.out, HasSubstr("  lr: 0.0003  # Peak learning rate\n"));
  EXPECT_THAT(result.out, HasSubstr("  # Position ids of training rows."));
  EXPECT_THAT(result.out, HasSubstr("num_heads: 4  # Number of heads"));
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  const TempDir dir;
  std::ofstream(dir / "explained.textproto") << result.out;
  const RunResult again = RunCommand({kProgram, "recipe", "--config", dir / "explained.textproto"});
  EXPECT_EQ(again.out, RunCommand(plain).out) << again.err;
}

}  // namespace
}  // namespace halflife::test
