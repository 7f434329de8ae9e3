// Output files that a user names: existing files are never destroyed, and "-" is standard output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

class Outputs : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    ExpectExit(fixture->Run({.run = "run", .set = {"train.steps=2"}}), 0);
    std::ofstream(fixture->path("line.txt")) << "the old stone walls";
  }

  // Runs a line in the shell, for redirections. $H is the program.
  static RunResult Shell(const std::string& line) {
    return RunCommand({"bash", "-c", line}, {.env = {{"H", kProgram}}, .cwd = Path("")});
  }
};

TEST_F(Outputs, ALinkIsFollowedAndADeviceStays) {
  fs::create_directory(Path("elsewhere"));
  for (const auto& [target, link] :
       {std::pair{"elsewhere/scores", "scores"}, std::pair{"elsewhere/page.html", "page.html"}}) {
    std::ofstream(fixture->path(target)) << "old";
    fs::create_symlink(Path(target), fixture->path(link));
  }
  fs::create_symlink("/dev/null", fixture->path("null"));
  ExpectExit(Shell("$H score --model run --text line.txt --out scores"), 0);
  ExpectExit(Shell("$H report run --out page.html"), 0);
  ExpectExit(Shell("$H report run --out null"), 0);
  ExpectExit(Shell("$H report run --out /dev/null"), 0);
  for (const char* link : {"scores", "page.html", "null"})
    EXPECT_TRUE(fs::is_symlink(fixture->path(link))) << link;
  EXPECT_TRUE(Read("elsewhere/scores").starts_with("{\"ids\":["));
  EXPECT_TRUE(Read("elsewhere/page.html").starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(Outputs, SomebodysTemporaryIsNotOurs) {
  std::ofstream(fixture->path("rr.html.tmp")) << "mine";
  ExpectExit(Shell("$H report run --out rr.html"), 0);
  EXPECT_EQ(Read("rr.html.tmp"), "mine");
}

TEST_F(Outputs, StandardOutputContainsOnlyTheResult) {
  const RunResult file =
      ExpectExit(Shell("$H score --model run --text line.txt --out file.jsonl"), 0);
  EXPECT_THAT(file.out, HasSubstr("1 sequence, "));
  EXPECT_THAT(file.out, HasSubstr("tokens scored"));
  for (const char* name : {"-", "/dev/stdout", "/dev/fd/1"}) {
    SCOPED_TRACE(name);
    const RunResult piped =
        Shell(std::string("$H score --model run --text line.txt --out ") + name + " | cat");
    EXPECT_EQ(piped.out, Read("file.jsonl"));
    EXPECT_THAT(piped.err, HasSubstr("tokens scored"));
    const RunResult appended = Shell(std::string("echo first >log; $H score --model run --text ") +
                                     "line.txt --out " + name + " >>log; echo last >>log");
    EXPECT_EQ(Read("log"), "first\n" + Read("file.jsonl") + "last\n");
  }
  EXPECT_FALSE(fs::exists(fixture->path("-")));
}

// Without the links of a complete /dev, no file of that name is created.
TEST_F(Outputs, StandardOutputNeedsNoLinkInDev) {
  const RunResult result = Shell(
      "unshare --mount bash -c 'mount -t tmpfs none /dev || exit 99; "
      "$H score --model run --text line.txt --out /dev/stdout; ls -A /dev >&2'");
  if (result.exit_code == 99 || result.err.find("unshare failed") != std::string::npos)
    GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  EXPECT_TRUE(result.out.starts_with("{\"ids\":[")) << result.out << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("\nstdout")));
}

TEST_F(Outputs, AFullDiskIsReportedAndAClosedPipeIsNot) {
  for (const char* command :
       {"mixers", "--help", "inspect run --json", "ckpt ls run", "completion bash"}) {
    SCOPED_TRACE(command);
    ExpectExit(Shell(std::string("$H ") + command + " >/dev/full"), 4, {"standard output"});
    ExpectExit(Shell(std::string("$H ") + command + " >/dev/null"), 0);
  }
  const RunResult head = Shell("set -o pipefail; $H recipe | head -c 1");
  EXPECT_TRUE(head.exit_code == 0 || head.exit_code == 128 + SIGPIPE) << head.exit_code;
}

TEST_F(Outputs, TextComesThroughPipes) {
  const std::string arguments = "$H generate --model run --max-tokens 5 --prompt ";
  const RunResult given = ExpectExit(Shell(arguments + "'the old'"), 0);
  EXPECT_EQ(Shell("printf 'the old' | " + arguments + "-").out, given.out);
  ExpectExit(Shell("$H score --model run --text line.txt --out file.jsonl"), 0);
  EXPECT_EQ(Shell("$H score --model run --text - --out - <line.txt").out, Read("file.jsonl"));
  EXPECT_EQ(Shell("$H score --model run --text <(cat line.txt) --out -").out, Read("file.jsonl"));
}

}  // namespace
}  // namespace halflife::test
