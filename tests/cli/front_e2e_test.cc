// The `halflife` front end, before it starts the engine.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/paths.h"
#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace halflife::test {
namespace {

namespace fs = std::filesystem;

// Therefore --version, --help and completion answer immediately.
TEST(Front, LoadsNeitherLibTorchNorMpi) {
  const RunResult libraries = RunCommand({"ldd", kProgram});
  ASSERT_EQ(libraries.exit_code, 0) << libraries.err;
  for (const char* heavy : {"torch", "libmpi", "hdf5", "protobuf"})
    EXPECT_EQ(libraries.out.find(heavy), std::string::npos) << libraries.out;
}

// Without the engine, it still runs commands that do not need it, and reports the missing file
// otherwise.
TEST(Front, SaysWhereItsEngineBelongs) {
  const TempDir dir;
  fs::copy_file(kProgram, dir / "halflife");
  const auto run = [&](const std::vector<std::string>& words) {
    std::vector<std::string> command = {dir / "halflife"};
    command.insert(command.end(), words.begin(), words.end());
    return RunCommand(command);
  };
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--version"},
                                                {"--help"},
                                                {"train", "--help"},
                                                {"completion", "bash"}}) {
    const RunResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(result.out.empty());
  }
  EXPECT_EQ(run({"trian"}).exit_code, 2);
  const RunResult work = run({"recipe"});
  EXPECT_EQ(work.exit_code, 4) << work.err;
  EXPECT_NE(work.err.find("halflife-engine"), std::string::npos) << work.err;
  EXPECT_NE(work.err.find("must be in the folder of"), std::string::npos) << work.err;
}

// A link in PATH leads to the folder that contains both programs.
TEST(Front, StartsThroughALink) {
  const TempDir dir;
  fs::create_symlink(kProgram, dir / "halflife");
  const RunResult result = RunCommand({dir / "halflife", "recipe"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("retention {"), std::string::npos) << result.out;
}

// The explanations are comments of at most 100 columns, so the text is the same recipe.
TEST(Front, ExplainsARecipe) {
  const std::vector<std::string> plain = {kProgram, "recipe", "--set", "model.mixer=gla"};
  std::vector<std::string> explained = plain;
  explained.emplace_back("--explain");
  const RunResult result = RunCommand(explained);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("  lr: 0.0003  # Peak learning rate\n"), std::string::npos);
  EXPECT_NE(result.out.find("  # Position ids of training rows."), std::string::npos);
  EXPECT_NE(result.out.find("num_heads: 4  # Number of heads"), std::string::npos) << result.out;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  const TempDir dir;
  std::ofstream(dir / "explained.textproto") << result.out;
  const RunResult again = RunCommand({kProgram, "recipe", "--config", dir / "explained.textproto"});
  EXPECT_EQ(again.out, RunCommand(plain).out) << again.err;
}

}  // namespace
}  // namespace halflife::test
