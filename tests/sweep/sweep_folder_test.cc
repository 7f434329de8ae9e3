// The folder of a sweep: status, locks and the last error of a run.
#include "sweep/sweep_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::sweep {
namespace {

TEST(SweepFolder, KeepsAStatusAndSeesWhatIsDone) {
  const test::TempDir dir;
  const SweepFolder folder(dir / "sweep");
  folder.Make();
  folder.Make();  // Repeating it is not an error.
  EXPECT_EQ(folder.Status("a=1").state, TrialState::kPending);
  folder.SetStatus("a=1", {.state = TrialState::kFailed,
                           .exit_code = 73,
                           .attempts = 2,
                           .seconds = 1.5,
                           .message = "broken \xff bytes"});
  const TrialStatus failed = folder.Status("a=1");
  EXPECT_EQ(failed.state, TrialState::kFailed);
  EXPECT_EQ(failed.exit_code, 73);
  EXPECT_EQ(failed.attempts, 2);
  EXPECT_EQ(failed.seconds, 1.5);
  std::filesystem::create_directories(folder.run("a=1"));
  std::ofstream(folder.run("a=1") / "DONE") << "{}";
  // For example by hand.
  EXPECT_EQ(folder.Status("a=1").state, TrialState::kFinished);
  EXPECT_EQ(folder.Status("a=1").exit_code, 0);
  EXPECT_EQ(folder.Status("a=1").message, "");
  // A run that has been removed is trained again.
  folder.SetStatus("a=1", {.state = TrialState::kFinished, .attempts = 1});
  std::filesystem::remove_all(folder.run("a=1"));
  EXPECT_EQ(folder.Status("a=1").state, TrialState::kPending);
  EXPECT_EQ(folder.Status("a=1").attempts, 0);
}

TEST(SweepFolder, ADamagedStatusIsAnErrorThatSaysWhatToDo) {
  const test::TempDir dir;
  const SweepFolder folder(dir / "sweep");
  folder.Make();
  std::ofstream(dir / "sweep/status/a=1.json") << "{\"state\":";
  EXPECT_HL_ERROR(folder.Status("a=1"), ExitCode::kEnvironment, "a=1.json is damaged. Remove it");
}

TEST(SweepFolder, TheLastWordsAreThoseOfAnError) {
  const test::TempDir dir;
  EXPECT_EQ(LastWords(dir / "none"), "");
  std::ofstream(dir / "log") << "first\n[1] [error] what was wrong\n[2] afterwards\n\n";
  EXPECT_EQ(LastWords(dir / "log"), "[1] [error] what was wrong");
  std::ofstream(dir / "long") << "[1] [error] two differences:\n  a\n  b\n[2] [info] the end\n";
  EXPECT_EQ(LastWords(dir / "long"), "[1] [error] two differences:\n  a\n  b");
  std::ofstream(dir / "plain") << "first\nlast\n";
  EXPECT_EQ(LastWords(dir / "plain"), "last");
  // For an attempt without an error, the error of an earlier attempt is not shown.
  EXPECT_EQ(LastWords(dir / "log", 33), "[2] afterwards");
  EXPECT_EQ(LastWords(dir / "log", 1000), "");
}

TEST(SweepFolder, OneSweepHoldsATrial) {
  const test::TempDir dir;
  const SweepFolder folder(dir / "sweep");
  folder.Make();
  std::optional<Fd> first = folder.Lock("a=1");
  EXPECT_TRUE(first);
  EXPECT_FALSE(SweepFolder(dir / "sweep").Lock("a=1"));
  EXPECT_TRUE(folder.Lock("a=2"));
  first.reset();
  EXPECT_TRUE(folder.Lock("a=1"));
}

}  // namespace
}  // namespace halflife::sweep
