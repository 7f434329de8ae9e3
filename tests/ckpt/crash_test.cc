// After a crash or a disk error at any named point of a save, the next load finds the step that the
// protocol promises, and the run continues from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "ckpt/ckpt_fixture.h"
#include "core/fault.h"
#include "core/log.h"
#include "support/expect_error.h"

namespace halflife::ckpt::test {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr StoreConfig kKeepTwo{.retention = {.keep_last = 2}};

// Saves steps 10, 20, ... until the armed fault kills the process. Returns the signal that killed
// it, or 0.
int SaveUntilKilled(const fs::path& run, int world, const std::string& fault) {
  const pid_t child = ::fork();
  if (child == 0) {
    fault::Arm(fault, 0);
    for (uint64_t step = 10; step <= 60; step += 10) {
      SaveStep(run, {.world = world, .step = step, .config = kKeepTwo}, SmallSpecs());
    }
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

struct Crash {
  const char* point;
  int world;
  int nth;
  uint64_t found;  // The step that a load must find.
};

void PrintTo(const Crash& crash, std::ostream* out) {
  *out << crash.point << ":" << crash.nth << " at world " << crash.world;
}

class CrashTest : public testing::TestWithParam<Crash> {};

TEST_P(CrashTest, LoadFindsThePromisedStepAndTheRunGoesOn) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  const Crash crash = GetParam();
  const TempDir run;
  const std::string fault = Concat(crash.point, ":kill:", crash.nth);
  ASSERT_EQ(SaveUntilKilled(run.path(), crash.world, fault), SIGKILL);
  const auto report = LoadStep(run.path(), 2, SmallSpecs());
  ASSERT_TRUE(report);
  EXPECT_EQ(report->state.step, crash.found);
  EXPECT_FALSE(report->fell_back);
  EXPECT_THAT(ListCkpt(run.path()), Not(Contains(StartsWith("."))));
  SaveStep(run.path(), {.world = 2, .step = crash.found + 10, .config = kKeepTwo}, SmallSpecs());
  EXPECT_EQ(LoadStep(run.path(), 1, SmallSpecs())->state.step, crash.found + 10);
}

// A save passes p1.write on each rank once for the header, and once per fragment and kind.
INSTANTIATE_TEST_SUITE_P(
    Points, CrashTest,
    testing::Values(Crash{"ckpt.p1.write", 1, 40, 20}, Crash{"ckpt.p1.fsync", 1, 3, 20},
                    Crash{"ckpt.p1.fsync", 2, 5, 20}, Crash{"ckpt.p1.fsync", 2, 6, 20},
                    Crash{"ckpt.p2.vote", 1, 3, 20}, Crash{"ckpt.p2.vote", 2, 6, 20},
                    Crash{"ckpt.p3.manifest", 1, 3, 20}, Crash{"ckpt.p3.manifest", 2, 3, 20},
                    Crash{"ckpt.p4.rename", 1, 3, 20}, Crash{"ckpt.p4.rename", 2, 3, 20},
                    Crash{"ckpt.p5.latest", 1, 3, 30}, Crash{"ckpt.p5.latest", 2, 3, 30},
                    Crash{"ckpt.gc.unlink", 1, 1, 30}, Crash{"ckpt.gc.unlink", 2, 8, 40}));

TEST(FirstSaveTest, ACrashInTheFirstSaveIsAFreshStart) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  const TempDir run;
  ASSERT_EQ(SaveUntilKilled(run.path(), 2, "ckpt.p3.manifest:kill:1"), SIGKILL);
  EXPECT_FALSE(LoadStep(run.path(), 2, SmallSpecs()));
}

class DiskErrorTest : public testing::TestWithParam<std::tuple<std::string, std::string, int>> {
 protected:
  void TearDown() override { fault::Arm("", 0); }
};

TEST_P(DiskErrorTest, CancelsTheAttemptAndLeavesThePreviousStep) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  const auto [point, action, world] = GetParam();
  const TempDir run;
  SaveStep(run.path(), {.world = world, .step = 10}, SmallSpecs());
  fault::Arm(point + ":" + action + ":1", 0);
  EXPECT_HL_ERROR(SaveStep(run.path(), {.world = world, .step = 20}, SmallSpecs()),
                  ExitCode::kCheckpointIo, "injected at " + point,
                  std::strerror(action == "enospc" ? ENOSPC : EIO));
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre(".trash/.tmp_step_000000000020", "LATEST", "step_000000000010"));
  EXPECT_EQ(LoadStep(run.path(), 2, SmallSpecs())->state.step, 10u);
  SaveStep(run.path(), {.world = world, .step = 20}, SmallSpecs());
  EXPECT_EQ(LoadStep(run.path(), 2, SmallSpecs())->state.step, 20u);
}

INSTANTIATE_TEST_SUITE_P(Points, DiskErrorTest,
                         testing::Combine(testing::Values("ckpt.p1.write", "ckpt.p1.fsync",
                                                          "ckpt.p2.vote", "ckpt.p3.manifest",
                                                          "ckpt.p4.rename"),
                                          testing::Values("enospc", "eio"), testing::Values(1, 2)));

TEST(LateDiskErrorTest, AfterTheRenameTheStepIsVisibleAndUnconfirmed) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  const TempDir run;
  for (const uint64_t step : {10, 20}) SaveStep(run.path(), {.step = step}, SmallSpecs());
  fault::Arm("ckpt.p5.latest:eio:1", 0);
  EXPECT_HL_ERROR(SaveStep(run.path(), {.world = 2, .step = 30, .config = kKeepTwo}, SmallSpecs()),
                  ExitCode::kCheckpointIo, "step 30 is visible but unconfirmed");
  fault::Arm("", 0);
  // Retention did not run, so there are three steps.
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre("LATEST", "step_000000000010", "step_000000000020", "step_000000000030"));
  EXPECT_EQ(LoadStep(run.path(), 1, SmallSpecs())->state.step, 30u);
}

TEST(LateDiskErrorTest, AStepThatIsSavedAgainInVainStays) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  for (const std::string point : {"ckpt.p3.manifest", "ckpt.p4.rename"}) {
    const TempDir run;
    for (const uint64_t step : {10, 20}) SaveStep(run.path(), {.step = step}, SmallSpecs());
    fault::Arm(point + ":eio:1", 0);
    try {
      SaveStep(run.path(), {.world = 2, .step = 20}, SmallSpecs());
      ADD_FAILURE() << "the save passed " << point;
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), StartsWith("injected at " + point));
    }
    fault::Arm("", 0);
    const auto report = LoadStep(run.path(), 1, SmallSpecs());
    EXPECT_EQ(report->state.step, 20u) << point;
    EXPECT_EQ(report->state.mesh.world, 1) << point;  // The mesh of the first save.
  }
}

TEST(LateDiskErrorTest, AFailingDeletionIsTriedAgain) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  const TempDir run;
  for (const uint64_t step : {10, 20}) SaveStep(run.path(), {.step = step}, SmallSpecs());
  fault::Arm("ckpt.gc.unlink:eio:2", 0);
  SaveStep(run.path(), {.step = 30, .config = kKeepTwo}, SmallSpecs());
  fault::Arm("", 0);
  EXPECT_THAT(ListCkpt(run.path()), ElementsAre(".trash/step_000000000010", "LATEST",
                                                "step_000000000020", "step_000000000030"));
  SaveStep(run.path(), {.step = 40, .config = kKeepTwo}, SmallSpecs());
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre("LATEST", "step_000000000030", "step_000000000040"));
}

class FullDiskTest : public testing::Test {
 protected:
  ~FullDiskTest() override {
    if (is_mounted_) ::umount(run().c_str());
  }
  const fs::path& run() const { return mount_.path(); }
  // Returns false if the system does not permit it.
  bool Mount(const char* size) {
    is_mounted_ = ::mount("tmpfs", run().c_str(), "tmpfs", 0, size) == 0;
    return is_mounted_;
  }
  // A step has 1.4 MiB.
  const std::vector<dist::ParamSpec> specs_ = {{.name = "w", .shape = {120'000}}};

 private:
  const TempDir mount_;
  bool is_mounted_ = false;
};
constexpr char kNoMount[] = "mounting a tmpfs is not permitted here: ";

TEST_F(FullDiskTest, ASmallFileSystem) {
  if (!Mount("size=4m")) GTEST_SKIP() << kNoMount << std::strerror(errno);
  // Two steps fit, the third does not.
  for (const uint64_t step : {10, 20}) SaveStep(run(), {.world = 2, .step = step}, specs_);
  for (const uint64_t step : {30, 40}) {
    EXPECT_HL_ERROR(SaveStep(run(), {.world = 2, .step = step}, specs_), ExitCode::kCheckpointIo,
                    "needs 1.5 MiB", "are free (No space left on device). Free space");
    try {
      SaveStep(run(), {.world = 2, .step = step}, specs_);
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), Not(HasSubstr("keep_last"))) << "there is no third step";
      EXPECT_FALSE(error.message().ends_with('.')) << "the trainer adds sentences";
    }
  }
  EXPECT_THAT(ListCkpt(run()), ElementsAre("LATEST", "step_000000000010", "step_000000000020"));
  EXPECT_EQ(LoadStep(run(), 1, specs_)->state.step, 20u);
}

// The remedy of the message works, although the steps that are then too many fill the disk.
TEST_F(FullDiskTest, AskedToKeepFewerStepsASaveDeletesOldOnesFirst) {
  if (!Mount("size=5500k")) GTEST_SKIP() << kNoMount << std::strerror(errno);
  const StoreConfig keep_five{.retention = {.keep_last = 5}};
  for (const uint64_t step : {10, 20, 30})
    SaveStep(run(), {.world = 2, .step = step, .config = keep_five}, specs_);
  EXPECT_HL_ERROR(SaveStep(run(), {.world = 2, .step = 40, .config = keep_five}, specs_),
                  ExitCode::kCheckpointIo, "Free space, or use a smaller ckpt.keep_last");
  SaveStep(run(), {.world = 2, .step = 40, .config = kKeepTwo}, specs_);
  EXPECT_THAT(ListCkpt(run()), ElementsAre("LATEST", "step_000000000030", "step_000000000040"));
}

}  // namespace
}  // namespace halflife::ckpt::test
