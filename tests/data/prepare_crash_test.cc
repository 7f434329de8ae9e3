// After a prepare that was killed, nothing looks finished, and the next prepare can remove what is
// left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/fault.h"
#include "data/small_datasets.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;
using test::Names;

class PrepareCrashTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!fault::CompiledIn()) GTEST_SKIP() << "built without fault points";
    std::vector<std::string> documents = test::RandomDocuments(3000, 1);
    test::WriteText(dir_ / "a.txt", test::JoinByBlankLines(documents));
  }
  void TearDown() override { fault::Arm("", 0); }

  PrepareConfig Config() {
    PrepareConfig config = test::ByteConfig(dir_ / "a.txt", dir_ / "out");
    config.output.shard_tokens = 65536;
    return config;
  }

  // Runs prepare in a child that a fault kills, and returns its wait status.
  int RunAndDie(const std::string& fault) {
    const pid_t child = ::fork();
    if (child == 0) {
      fault::Arm(fault, 0);
      try {
        Prepare(Config());
      } catch (...) {
        ::_exit(3);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }

  std::vector<std::string> Leftovers() {
    std::vector<std::string> found;
    for (const std::string& name : Names(dir_.path())) {
      if (name.starts_with("out")) found.push_back(name);
    }
    return found;
  }

  TempDir dir_;
};

TEST_F(PrepareCrashTest, AKilledRunLeavesNothingFinished) {
  for (const char* fault :
       {"data.shard.write:kill:1", "data.shard.write:kill:4", "data.publish:kill:1"}) {
    const int status = RunAndDie(fault);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << fault;
    ASSERT_EQ(Leftovers().size(), 1u) << fault;
    EXPECT_TRUE(Leftovers()[0].starts_with("out.tmp-")) << Leftovers()[0];
    EXPECT_FALSE(fs::exists(dir_ / "out"));
  }
  // Three killed runs left one folder: each run removed that of the previous one.
  Prepare(Config());
  EXPECT_EQ(Leftovers(), (std::vector<std::string>{"out"}));
  Dataset::Open(dir_ / "out").Verify();
}

class ResumablePrepareTest : public PrepareCrashTest {
 protected:
  void SetUp() override {
    PrepareCrashTest::SetUp();
    test::WriteText(dir_ / "held_out.txt",
                    test::JoinByBlankLines(test::RandomDocuments(400, 2)) + "\n\n<|x|>\n");
    PrepareConfig whole = Resumable();
    whole.resumable = false;
    Prepare(whole);
    want_ = test::FolderFingerprint(dir_ / "out");
    fs::remove_all(dir_ / "out");
  }
  PrepareConfig Resumable() {
    PrepareConfig config = Config();
    config.input.validation_paths = {(dir_ / "held_out.txt").string()};
    config.input.validation_fraction = std::nullopt;
    config.documents = DocumentMode::kBlankLines;
    config.dedup = true;
    config.chunk_bytes = 4096;
    config.resumable = true;
    return config;
  }
  // Stops a run after this number of reports, which is one for each chunk.
  void StopAfter(int chunks) {
    std::atomic<bool> stop = false;
    PrepareConfig config = Resumable();
    config.output.stop = &stop;
    config.output.on_progress = [&](const PrepareProgress&) { stop = --chunks <= 0; };
    EXPECT_HL_ERROR(Prepare(config), ExitCode::kInterrupted, "stopped by a signal");
  }
  uint64_t JournalBytes() { return fs::file_size(dir_ / "out.journal"); }

  std::string want_;
};

// Interrupted in the validation text, in the training text and, with a chunk cut off, again.
TEST_F(ResumablePrepareTest, ContinuesWithTheSameBytes) {
  uint64_t before = 0;
  for (const int chunks : {2, 20, 60}) {
    StopAfter(chunks);
    EXPECT_GT(JournalBytes(), before);
    fs::resize_file(dir_ / "out.journal", JournalBytes() - 3);
    before = JournalBytes();
    EXPECT_EQ(Leftovers(), (std::vector<std::string>{"out.journal"}));
  }
  Prepare(Resumable());
  EXPECT_EQ(test::FolderFingerprint(dir_ / "out"), want_);
  EXPECT_EQ(Leftovers(), (std::vector<std::string>{"out"}));
}

TEST_F(ResumablePrepareTest, RejectsTheJournalOfOtherOptions) {
  StopAfter(5);
  PrepareConfig config = Resumable();
  config.dedup = false;
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kUsage,
                  "out.journal was written by a prepare with "
                  "other options",
                  "or remove the journal");
  const int fd = ::open((dir_ / "out.journal").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_HL_ERROR(Prepare(Resumable()), ExitCode::kUsage, "is used by another prepare");
  ::close(fd);
  Prepare(Resumable());
  EXPECT_EQ(test::FolderFingerprint(dir_ / "out"), want_);
}

TEST_F(ResumablePrepareTest, KeepsAFileThatIsNoJournal) {
  std::ofstream(dir_ / "out.journal") << "notes";
  EXPECT_HL_ERROR(Prepare(Resumable()), ExitCode::kUsage, "out.journal is not a journal of prepare",
                  "Move it");
  EXPECT_EQ(JournalBytes(), 5u);
  fs::remove(dir_ / "out.journal");
  StopAfter(1);
  fs::resize_file(dir_ / "out.journal", 30);  // its first record was cut off
  Prepare(Resumable());
  EXPECT_EQ(test::FolderFingerprint(dir_ / "out"), want_);
}

TEST_F(PrepareCrashTest, AFailingRunRemovesItsTemporary) {
  for (const char* fault : {"data.shard.write:enospc:2", "data.publish:eio:1"}) {
    fault::Arm(fault, 0);
    EXPECT_HL_ERROR(Prepare(Config()), ExitCode::kData, "injected at");
    EXPECT_TRUE(Leftovers().empty()) << fault;
  }
}

TEST_F(PrepareCrashTest, TheTemporaryOfALivingRunIsKept) {
  const fs::path living = dir_ / "out.tmp-0123abcd", other = dir_ / "outer.tmp-0123abcd";
  fs::create_directories(living);
  fs::create_directories(other);  // The folder of another dataset.
  const int fd = ::open(living.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  Prepare(Config());
  EXPECT_TRUE(fs::exists(living));
  EXPECT_TRUE(fs::exists(other));
  ::close(fd);
}

// Folders that only look like our temporary ones are kept.
TEST_F(PrepareCrashTest, FoldersOfOthersStay) {
  const std::vector<fs::path> others = {dir_ / "out.tmp-backup", dir_ / "out.tmp-v2",
                                        dir_ / "out.tmp-0123ABCD", dir_ / "out.tmp-0123abcde",
                                        dir_ / "out.tmp-"};
  for (const fs::path& folder : others) {
    fs::create_directories(folder);
    test::WriteText(folder / "notes.txt", "mine");
  }
  fs::create_directories(dir_ / "out.tmp-0123abcd");  // Ours, of a dead process.
  Prepare(Config());
  for (const fs::path& folder : others) EXPECT_TRUE(fs::exists(folder / "notes.txt")) << folder;
  EXPECT_FALSE(fs::exists(dir_ / "out.tmp-0123abcd"));
}

TEST_F(PrepareCrashTest, FewerThreadsThanAskedForDo) {
  Prepare(Config());
  const std::string want = test::FolderFingerprint(dir_ / "out");
  fs::remove_all(dir_ / "out");
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t most = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
    const rlimit limit = {.rlim_cur = most, .rlim_max = most};  // About 30 stacks.
    ::setrlimit(RLIMIT_AS, &limit);
    PrepareConfig config = Config();
    config.output.threads = 1024;
    try {
      Prepare(config);
      ::_exit(0);
    } catch (const Error& error) {
      ::_exit(static_cast<int>(error.code()));
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(test::FolderFingerprint(dir_ / "out"), want);
}

TEST_F(PrepareCrashTest, TwoRunsAtOnceMakeOneDataset) {
  const int status = RunAndDie("");  // The first one finishes ...
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const std::string before = test::FolderFingerprint(dir_ / "out");
  // ... and its dataset is kept.
  EXPECT_HL_ERROR(Prepare(Config()), ExitCode::kUsage, "exists already");
  EXPECT_EQ(test::FolderFingerprint(dir_ / "out"), before);
}

TEST_F(PrepareCrashTest, AFullDiskIsSaidAndLeavesNothing) {
  const fs::path disk = dir_ / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "cannot mount a small tmpfs here: " << std::strerror(errno);
  }
  std::string text;
  while (text.size() < 3 << 20)
    text += test::JoinByBlankLines(test::RandomDocuments(500, text.size()));
  test::WriteText(dir_ / "a.txt", text);
  PrepareConfig config = Config();
  config.output.out = disk / "out";
  config.output.shard_tokens = int64_t{1} << 26;
  EXPECT_HL_ERROR(Prepare(config), ExitCode::kData, "No space left on device");
  EXPECT_TRUE(Names(disk).empty());
  EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace halflife::data
