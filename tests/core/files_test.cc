// Atomic writes, output paths and bounded reads, including links, pipes and missing permissions.
#include "core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <thread>

#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife {
namespace {

namespace fs = std::filesystem;
constexpr ExitCode kCode = ExitCode::kData;

class Files : public testing::Test {
 protected:
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(dir_.path())) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  test::TempDir dir_;
};

TEST_F(Files, AtomicWriteReplacesAndLeavesNoTemporary) {
  const fs::path path = dir_ / "config";
  AtomicWriteFile(path, "one", kCode);
  AtomicWriteFile(path, std::string("two\0three", 9), kCode);
  EXPECT_EQ(ReadFile(path, kCode), std::string("two\0three", 9));
  AtomicWriteFile(path, "", kCode);
  EXPECT_EQ(ReadFile(path, kCode), "");
  EXPECT_EQ(Names(), std::set<std::string>{"config"});
}

TEST_F(Files, AFailedAtomicWriteKeepsTheOldFile) {
  const fs::path path = dir_ / "config";
  fs::create_directories(path / "occupied");  // rename(2) cannot replace a folder.
  EXPECT_HL_ERROR(AtomicWriteFile(path, "text", kCode), kCode, "cannot rename", path.string());
  EXPECT_TRUE(fs::is_directory(path / "occupied"));
  EXPECT_EQ(Names(), std::set<std::string>{"config"}) << "the temporary is removed";
  EXPECT_HL_ERROR(AtomicWriteFile(dir_ / "none/x", "text", kCode), kCode, "cannot open",
                  "No such file");
}

// A write replaces the target of a link, not the link.
TEST_F(Files, AnOutputFollowsLinks) {
  fs::create_directory(dir_ / "there");
  AtomicWriteFile(dir_ / "there/file", "old", kCode);
  fs::permissions(dir_ / "there/file", fs::perms(0640));
  fs::create_symlink("there/file", dir_ / "link");
  fs::create_symlink(dir_ / "link", dir_ / "second");
  fs::create_symlink("there/new", dir_ / "dangling");
  WriteOutput(dir_ / "second", "new", kCode);
  WriteOutput(dir_ / "dangling", "made", kCode);
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_TRUE(fs::is_symlink(dir_ / "second"));
  EXPECT_TRUE(fs::is_symlink(dir_ / "dangling"));
  EXPECT_EQ(ReadFile(dir_ / "there/file", kCode), "new");
  EXPECT_EQ(ReadFile(dir_ / "there/new", kCode), "made");
  EXPECT_EQ(fs::status(dir_ / "there/file").permissions(), fs::perms(0640));

  fs::create_symlink("loop", dir_ / "loop");
  EXPECT_HL_ERROR(WriteOutput(dir_ / "loop", "x", kCode), kCode, "loop", "symbolic links");
  EXPECT_TRUE(fs::is_symlink(dir_ / "loop"));
  EXPECT_HL_ERROR(WriteOutput(dir_ / "there", "x", kCode), kCode, "it is a folder");
}

// The check reports the same error as the write that would fail later.
TEST_F(Files, AnOutputIsAskedForBeforeTheWork) {
  const auto refused = [&](const fs::path& path, const std::string& words) {
    EXPECT_HL_ERROR(RequireWritable(path, kCode), kCode, path.string(), words);
    EXPECT_HL_ERROR(WriteOutput(path, "x", kCode), kCode, path.string(), words);
  };
  AtomicWriteFile(dir_ / "file", "old", kCode);
  fs::create_symlink("none/new", dir_ / "astray");
  fs::create_directory(dir_ / "locked");
  fs::permissions(dir_ / "locked", fs::perms(0555));
  fs::create_symlink("new", dir_ / "dangling");
  refused(dir_ / "none/new", "No such file");
  EXPECT_HL_ERROR(RequireWritable(dir_ / "astray", kCode), kCode, "astray", "No such file");
  refused(dir_ / "file/new", "Not a directory");
  refused(dir_.path(), "it is a folder");
  if (::geteuid() != 0) refused(dir_ / "locked/new", "Permission denied");  // root may write there.
  const std::set<std::string> before = Names();
  for (const fs::path& path : {dir_ / "file", dir_ / "new", dir_ / "dangling", fs::path("bare"),
                               fs::path("-"), fs::path("/dev/null"), fs::path("/dev/stdout")})
    EXPECT_NO_THROW(RequireWritable(path, kCode)) << path;
  EXPECT_EQ(Names(), before);
  EXPECT_EQ(ReadFile(dir_ / "file", kCode), "old");
}

// A write into our own folder must not follow a link that was planted there.
TEST_F(Files, AtomicWriteReplacesLinksAndPipes) {
  AtomicWriteFile(dir_ / "elsewhere", "theirs", kCode);
  fs::create_symlink("elsewhere", dir_ / "link");
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe"}) {
    AtomicWriteFile(dir_ / name, "ours", kCode);
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(dir_ / name)));
    EXPECT_EQ(ReadFile(dir_ / name, kCode), "ours");
  }
  EXPECT_EQ(ReadFile(dir_ / "elsewhere", kCode), "theirs");
}

// A path such as /dev/null, which other programs need, is never renamed over.
TEST_F(Files, AtomicWriteRefusesADevice) {
  if (::mknod((dir_ / "null").c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0)
    GTEST_SKIP() << "creating a device is not permitted here";
  EXPECT_HL_ERROR(AtomicWriteFile(dir_ / "null", "x", kCode), kCode, "null: it is a device",
                  "Use another path.");
  EXPECT_TRUE(fs::is_character_file(dir_ / "null"));
}

TEST_F(Files, AtomicWriteKeepsOtherTemporaries) {
  AtomicWriteFile(dir_ / "page.html.tmp", "mine", kCode);
  AtomicWriteFile(dir_ / "page.html", "page", kCode);
  EXPECT_EQ(ReadFile(dir_ / "page.html.tmp", kCode), "mine");
  EXPECT_EQ(Names(), (std::set<std::string>{"page.html", "page.html.tmp"}));
}

TEST_F(Files, RemoveTemporariesOnlyRemovesThoseOfAtomicWrite) {
  const std::string ours = ".DONE.tmp-0123456789abcdef";
  for (const std::string& name : {ours, std::string(".x.tmp-01"), std::string("x.tmp"),
                                  std::string("DONE.tmp-0123456789abcdef")}) {
    std::ofstream(dir_ / name) << "x";
  }
  RemoveTemporaries(dir_.path());
  EXPECT_EQ(Names(), (std::set<std::string>{".x.tmp-01", "x.tmp", "DONE.tmp-0123456789abcdef"}));
}

TEST_F(Files, AnOutputGoesThroughWhatIsNoFile) {
  const fs::path pipe = dir_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // The pipe has no reader.
  EXPECT_HL_ERROR(WriteOutput(pipe, "x", kCode), kCode, "cannot open", "pipe");
  const Fd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
  WriteOutput(pipe, "through", kCode);
  char text[8] = {};
  EXPECT_EQ(::read(reader.get(), text, sizeof text), 7);
  EXPECT_STREQ(text, "through");
  EXPECT_TRUE(fs::is_fifo(pipe));

  WriteOutput("/dev/null", "x", kCode);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_HL_ERROR(
      WriteOutput("/dev/full", "x", kCode), kCode,
      "cannot write /dev/full: No space left on device (errno 28). Free space on this disk");
}

// The write uses the descriptor itself, so earlier and later output of the program is kept.
TEST_F(Files, ADescriptorsNameIsThatDescriptor) {
  const fs::path path = dir_ / "redirected";
  const Fd fd = OpenFile(path, O_WRONLY | O_CREAT, kCode);
  WriteAll(fd.get(), "before ", 7, path, kCode);
  WriteOutput(Concat("/dev/fd/", fd.get()), "text", kCode);
  WriteAll(fd.get(), " after", 6, path, kCode);
  EXPECT_EQ(ReadFile(path, kCode), "before text after");
}

TEST_F(Files, AtomicWriteTakesABareName) {
  const fs::path before = fs::current_path();
  fs::current_path(dir_.path());
  AtomicWriteFile("bare", "text", kCode);
  EXPECT_EQ(ReadFile("bare", kCode), "text");
  fs::current_path(before);
}

TEST_F(Files, ReadFileExplainsWhatItMet) {
  EXPECT_HL_ERROR(ReadFile(dir_ / "absent", kCode), kCode, "cannot open", "absent", "errno 2");
  EXPECT_HL_ERROR(ReadFile(dir_.path(), ExitCode::kUsage), ExitCode::kUsage, "is a folder");
  EXPECT_FALSE(ReadFile("/proc/self/status", kCode).empty()) << "reports size 0";
}

// None of these may block the reader or make it read without end.
TEST_F(Files, ReadFileRefusesWhatIsNoFileAtOnce) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  // The pipe has a writer that writes nothing.
  const Fd writer(::open((dir_ / "pipe").c_str(), O_RDWR));
  EXPECT_HL_ERROR(ReadFile(dir_ / "pipe", kCode), kCode, "is a pipe, not a file");
  EXPECT_HL_ERROR(ReadFile("/dev/zero", kCode), kCode, "is a device, not a file");
  std::ofstream(dir_ / "long") << std::string(1001, 'x');
  EXPECT_HL_ERROR(ReadFile(dir_ / "long", kCode, 1000), kCode, "more than 1000 bytes");
  EXPECT_EQ(ReadFile(dir_ / "long", kCode, 1001).size(), 1001u);
  fs::resize_file(dir_ / "long", 1ull << 40);  // A sparse file, which must not cost memory.
  EXPECT_HL_ERROR(ReadFile(dir_ / "long", kCode), kCode, "more than 1073741824 bytes");
}

TEST_F(Files, ReadStreamTakesPipesAndEndsAtItsLimit) {
  const fs::path unattended = dir_ / "pipe";
  ASSERT_EQ(::mkfifo(unattended.c_str(), 0600), 0);
  EXPECT_EQ(ReadStream(unattended, kCode), "") << "nothing writes to this pipe";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd reader(ends[0]);
  std::jthread writer([end = ends[1]] {  // More than a pipe can hold.
    const Fd fd(end);
    const std::string text(200'000, 'y');
    WriteAll(fd.get(), text.data(), text.size(), "pipe", kCode);
  });
  EXPECT_EQ(ReadStream(Concat("/dev/fd/", reader.get()), kCode), std::string(200'000, 'y'));
  EXPECT_HL_ERROR(ReadStream("/dev/zero", kCode, 1 << 20), kCode, "more than 1048576 bytes");
}

TEST_F(Files, LargeFilesComeBackWhole) {
  std::string text(3'000'001, 'x');
  for (size_t i = 0; i < text.size(); i += 4096) text[i] = static_cast<char>(i / 4096);
  AtomicWriteFile(dir_ / "large", text, kCode);
  EXPECT_TRUE(ReadFile(dir_ / "large", kCode) == text);
}

TEST_F(Files, PublishMovesOnceAndRefusesToReplace) {
  const fs::path from = dir_ / "step.tmp", to = dir_ / "step";
  fs::create_directory(from);
  AtomicWriteFile(from / "a", "1", kCode);
  PublishDirectory(from, to, kCode);
  EXPECT_EQ(Names(), std::set<std::string>{"step"});
  EXPECT_EQ(ReadFile(to / "a", kCode), "1");

  fs::create_directory(from);
  EXPECT_HL_ERROR(PublishDirectory(from, to, kCode), kCode, "exists already", to.string());
  const fs::path empty = dir_ / "empty";  // rename(2) would replace it.
  fs::create_directory(empty);
  EXPECT_HL_ERROR(PublishDirectory(from, empty, kCode), kCode, "exists already");
  EXPECT_TRUE(fs::exists(from));
  EXPECT_HL_ERROR(PublishDirectory(dir_ / "absent", dir_ / "new", kCode), kCode, "cannot publish",
                  "No such file");
}

// A folder's name may end in a slash. Temporary files still go next to the folder, not into it.
TEST_F(Files, AFolderIsPublishedUnderAnySpellingOfItsName) {
  for (const char* spelling : {"plain", "slash/", "slashes//", "dot/.", "dots/././"}) {
    SCOPED_TRACE(spelling);
    const fs::path to = dir_ / spelling, temporary = TemporaryPathFor(to, "0a");
    EXPECT_EQ(temporary.parent_path(), dir_.path());
    EXPECT_EQ(temporary.filename(), fs::path(spelling).begin()->string() + ".tmp.0a");
    fs::create_directory(temporary);
    PublishDirectory(temporary, to, kCode);
    EXPECT_TRUE(fs::is_directory(to));
    fs::create_directory(temporary);
    EXPECT_HL_ERROR(PublishDirectory(temporary, to, kCode), kCode, "exists already");
  }
  EXPECT_EQ(NamedFolder("/"), "/");
  EXPECT_EQ(TemporaryPathFor("bare/", "b"), "bare.tmp.b");
}

TEST_F(Files, FdClosesWhatItOwns) {
  int raw = -1;
  {
    Fd fd = OpenFile(dir_ / "x", O_WRONLY | O_CREAT, kCode);
    raw = fd.get();
    const Fd moved = std::move(fd);
    EXPECT_FALSE(fd);  // NOLINT(bugprone-use-after-move): the moved-from state is the point
    EXPECT_EQ(moved.get(), raw);
    EXPECT_NE(::fcntl(raw, F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
}

TEST_F(Files, RandomHexHasItsLengthAndDiffers) {
  EXPECT_EQ(RandomHex(7).size(), 7u);
  EXPECT_NE(RandomHex(16), RandomHex(16));
  EXPECT_EQ(RandomHex(32).find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_GT(FreeBytes(dir_.path(), kCode), 0u);
}

}  // namespace
}  // namespace halflife
