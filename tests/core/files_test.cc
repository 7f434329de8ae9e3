#include "core/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <set>

#include "core/jsonl.h"
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
  fs::create_directories(path / "occupied");  // rename(2) cannot replace a folder
  EXPECT_HL_ERROR(AtomicWriteFile(path, "text", kCode), kCode, "cannot rename", path.string());
  EXPECT_TRUE(fs::is_directory(path / "occupied"));
  EXPECT_EQ(Names(), std::set<std::string>{"config"}) << "the temporary is removed";
  EXPECT_HL_ERROR(AtomicWriteFile(dir_ / "none/x", "text", kCode), kCode, "cannot open",
                  "No such file");
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
  const fs::path empty = dir_ / "empty";  // plain rename(2) would replace it
  fs::create_directory(empty);
  EXPECT_HL_ERROR(PublishDirectory(from, empty, kCode), kCode, "exists already");
  EXPECT_TRUE(fs::exists(from));
  EXPECT_HL_ERROR(PublishDirectory(dir_ / "absent", dir_ / "new", kCode), kCode, "cannot publish",
                  "No such file");
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

TEST_F(Files, JsonlAppendsWholeLines) {
  const fs::path path = dir_ / "metrics.jsonl";
  JsonlWriter(path, kCode).Append({{"step", 1}, {"loss", 2.5}});
  JsonlWriter(path, kCode).Append({{"step", 2}, {"loss", std::nan("")}});
  EXPECT_EQ(ReadFile(path, kCode), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":null}\n");
}

TEST_F(Files, JsonlEndsTheTornLineOfACrashedWriter) {
  const fs::path path = dir_ / "metrics.jsonl";
  AtomicWriteFile(path, "{\"step\":1}\n{\"st", kCode);
  JsonlWriter(path, kCode).Append({{"step", 3}});
  EXPECT_EQ(ReadFile(path, kCode), "{\"step\":1}\n{\"st\n{\"step\":3}\n");
}

TEST_F(Files, JsonlSurvivesBadUtf8AndSaysWhereItCannotWrite) {
  const fs::path path = dir_ / "x.jsonl";
  JsonlWriter(path, kCode).Append({{"text", "\xff"}});
  EXPECT_EQ(ReadFile(path, kCode), "{\"text\":\"\xEF\xBF\xBD\"}\n");
  EXPECT_HL_ERROR(JsonlWriter(dir_ / "no/x.jsonl", ExitCode::kEnvironment), ExitCode::kEnvironment,
                  "no/x.jsonl");
}

}  // namespace
}  // namespace halflife
