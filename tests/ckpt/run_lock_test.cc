// A run folder has one writer: the lock, takeovers, and folders that are not writable.
#include "ckpt/run_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <optional>

#include "ckpt/ckpt_fixture.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"

namespace halflife::ckpt::test {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;

std::string HostAndPid() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return std::string(name) + ":" + std::to_string(::getpid());
}

void SetAgeSeconds(const fs::path& path, int64_t age) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  now.tv_sec -= age;
  const timespec times[] = {now, now};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(RunLockTest, ASecondHolderGetsOwnerAndStartTime) {
  const TempDir run;
  const RunLock lock = RunLock::Acquire(run.path(), {});
  lock.CheckStillOwner();
  EXPECT_HL_ERROR(RunLock::Acquire(run.path(), {}), ExitCode::kEnvironment,
                  "run directory " + run.path().string() + " is in use by " + HostAndPid(),
                  " since 2", "--steal-lock");
  lock.CheckStillOwner();  // The failed attempt has changed nothing.
}

// The lock file is written to, and a link could lead to a file of another user.
TEST(RunLockTest, ALinkIsNoLock) {
  const TempDir run;
  std::ofstream(run / "theirs") << "theirs";
  fs::create_symlink("theirs", run / "run.lock");
  EXPECT_HL_ERROR(RunLock::Acquire(run.path(), {}), ExitCode::kEnvironment, "run.lock");
  EXPECT_EQ(ReadFile(run / "theirs", ExitCode::kInternal), "theirs");
}

TEST(RunLockTest, IsFreeAfterTheHolderWasKilled) {
  const TempDir run;
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock = RunLock::Acquire(run.path(), {});
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  RunLock::Acquire(run.path(), {}).CheckStillOwner();
}

TEST(RunLockTest, IsFreeAfterTheHolderEnded) {
  const TempDir run;
  { const RunLock lock = RunLock::Acquire(run.path(), {}); }
  RunLock::Acquire(run.path(), {}).CheckStillOwner();
}

TEST(RunLockTest, AStolenTokenStopsTheOldOwner) {
  const TempDir run;
  const RunLock lock = RunLock::Acquire(run.path(), {});
  std::ofstream(run / "owner.json") << R"({"host": "node7", "pid": 4242, "token": "another",)"
                                    << R"( "started": "2030-01-02T03:04:05Z"})";
  EXPECT_HL_ERROR(lock.CheckStillOwner(), ExitCode::kEnvironment,
                  "was taken over by node7:4242 at 2030-01-02T03:04:05Z", "publishes nothing more");
  fs::remove(run / "owner.json");
  EXPECT_HL_ERROR(lock.CheckStillOwner(), ExitCode::kEnvironment, "was taken over");
}

// This is not a takeover, which ends the run. ckpt.on_error decides what happens.
TEST(RunLockTest, AnOwnerThatCannotBeReadFailsTheSave) {
  const TempDir run;
  const RunLock lock = RunLock::Acquire(run.path(), {});
  fs::remove(run / "owner.json");
  fs::create_directory(run / "owner.json");
  EXPECT_HL_ERROR(lock.CheckStillOwner(), ExitCode::kCheckpointIo, "owner.json is a folder");
}

TEST(RunLockTest, NothingIsPublishedAfterATakeover) {
  const TempDir run;
  std::optional<RunLock> lock = RunLock::Acquire(run.path(), {});
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  const auto save = [&] {
    dist::LocalWorld::Run(2, [&](dist::Communicator& control) {
      TestArena arena(SmallSpecs(), 2);
      arena.Fill(20);
      CheckpointStore store(run / "ckpt", control, {});
      int num_checks = 0;
      // The takeover happens while shards are written. The check before the rename must notice it.
      store.SetOwnershipCheck([&] {
        if (++num_checks == 2) std::ofstream(run / "owner.json") << R"({"token": "another"})";
        lock->CheckStillOwner();
      });
      store.Save(arena.view(), MakeState(20));
    });
  };
  EXPECT_HL_ERROR(save(), ExitCode::kEnvironment, "was taken over");
  EXPECT_EQ(LoadStep(run.path(), 1, SmallSpecs())->state.step, 10u);
}

TEST(RunLockTest, StealingNeedsAStaleHeartbeat) {
  const TempDir run;
  const RunLock lock = RunLock::Acquire(run.path(), {});
  std::ofstream(run / "heartbeat.json") << "{}";
  EXPECT_HL_ERROR(RunLock::Acquire(run.path(), {.steal = true}), ExitCode::kEnvironment,
                  "in use by " + HostAndPid(), "--steal-lock needs one older than 10 min");
  SetAgeSeconds(run / "heartbeat.json", 601);
  EXPECT_HL_ERROR(RunLock::Acquire(run.path(), {.steal = true}), ExitCode::kEnvironment, "in use");
  SetAgeSeconds(run / "owner.json", 601);
  const RunLock thief = RunLock::Acquire(run.path(), {.steal = true});
  thief.CheckStillOwner();
  EXPECT_HL_ERROR(lock.CheckStillOwner(), ExitCode::kEnvironment, "taken over by " + HostAndPid());
  EXPECT_HL_ERROR(RunLock::Acquire(run.path(), {}), ExitCode::kEnvironment, "in use");
}

TEST(RunLockTest, StealingFromADeadProcessNeedsNoWait) {
  const TempDir run;
  // A child that outlives its parent holds the lock of a dead pid.
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock = RunLock::Acquire(run.path(), {});
    if (::fork() == 0) {
      char byte;
      ::close(pipe_fds[1]);
      static_cast<void>(!::read(pipe_fds[0], &byte, 1));  // Until the test ends.
    }
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_HL_ERROR(RunLock::Acquire(run.path(), {}), ExitCode::kEnvironment, "in use");
  RunLock::Acquire(run.path(), {.steal = true}).CheckStillOwner();
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

TEST(RunLockTest, AReadOnlyFolderFailsAtTheStart) {
  const TempDir mount;
  if (::mount("tmpfs", mount.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here: " << std::strerror(errno);
  }
  fs::create_directories(mount / "run/ckpt");
  ::mount("tmpfs", mount.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m");
  EXPECT_HL_ERROR(RunLock::Acquire(mount / "run", {}), ExitCode::kEnvironment,
                  (mount / "run/ckpt").string() + " is not writable", "Read-only file system");
  ::umount(mount.path().c_str());
}

TEST(RunLockTest, APathThatIsAFileFailsAtTheStart) {
  const TempDir dir;
  std::ofstream(dir / "run") << "a file";
  EXPECT_HL_ERROR(RunLock::Acquire(dir / "run", {}), ExitCode::kEnvironment, "cannot create",
                  "checkpoints could not be saved there");
}

}  // namespace
}  // namespace halflife::ckpt::test
