// DirectWriter writes exactly the appended bytes, with and without O_DIRECT, and reports errors of
// its thread.
#include "ckpt/direct_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "core/error.h"
#include "support/temp_dir.h"

namespace halflife::ckpt {
namespace {

std::string Bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

void WriteInParts(const std::filesystem::path& path, const std::string& bytes, size_t part) {
  DirectWriter file(path, bytes.size());
  for (size_t at = 0; at < bytes.size(); at += part)
    file.Append(bytes.data() + at, std::min(part, bytes.size() - at));
  EXPECT_EQ(file.bytes(), bytes.size());
  file.Finish();
}

constexpr size_t kMiB = size_t{1} << 20;

// Sizes around those of sectors (4 KiB) and blocks (4 MiB), and more blocks than the writer
// buffers.
TEST(DirectWriter, WritesWhatWasAppended) {
  const test::TempDir dir;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, 4 * kMiB - 1,
                            4 * kMiB, 4 * kMiB + 1, 21 * kMiB + 13}) {
    for (const size_t part : {size_t{100003}, 5 * kMiB}) {
      const auto path = dir.path() / Concat(size, "_", part);
      const std::string bytes = Bytes(size);
      WriteInParts(path, bytes, part);
      EXPECT_TRUE(ReadFile(path, ExitCode::kCheckpointIo) == bytes) << size << " by " << part;
    }
  }
}

// A file system in memory does not support direct writes.
TEST(DirectWriter, WorksWithoutDirectWrites) {
  const std::filesystem::path shm = "/dev/shm";
  if (!std::filesystem::is_directory(shm)) GTEST_SKIP() << "no /dev/shm here";
  const std::filesystem::path path = shm / Concat("halflife_direct_writer_", ::getpid());
  const std::string bytes = Bytes(9 * kMiB + 77);
  WriteInParts(path, bytes, 3 * kMiB);
  EXPECT_TRUE(ReadFile(path, ExitCode::kCheckpointIo) == bytes);
  std::filesystem::remove(path);
}

TEST(DirectWriter, RefusesAnExistingFile) {
  const test::TempDir dir;
  const auto path = dir.path() / "shard";
  WriteInParts(path, "abc", 3);
  EXPECT_THROW(DirectWriter(path, 3), Error);
  EXPECT_EQ(ReadFile(path, ExitCode::kCheckpointIo), "abc");
}

// Limits the file size of the process. A full disk would already fail when space is reserved.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(DirectWriter, ReportsErrorsOfItsThread) {
  const test::TempDir dir;
  const FileSizeLimit limit(5 * kMiB);
  try {
    DirectWriter file(dir.path() / "shard", kMiB);
    const std::string bytes = Bytes(4 * kMiB);
    for (int i = 0; i < 20; ++i) file.Append(bytes.data(), bytes.size());
    file.Finish();
    FAIL() << "wrote past the limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckpointIo);
    EXPECT_NE(error.message().find("File too large"), std::string::npos) << error.message();
  }
}

size_t NumOpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

// An attempt that fails elsewhere destroys its writer before the end. Each block of 4 MiB is then
// written completely or not at all. An incomplete last block is not written.
TEST(DirectWriter, MayBeLeftUnfinished) {
  const test::TempDir dir;
  const auto path = dir.path() / "shard";
  const std::string bytes = Bytes(13 * kMiB);
  const size_t num_open = NumOpenFiles();
  {
    DirectWriter file(path, 16 * kMiB);
    file.Append(bytes.data(), bytes.size());
  }
  EXPECT_EQ(NumOpenFiles(), num_open);
  const std::string written = ReadFile(path, ExitCode::kCheckpointIo);
  EXPECT_LE(written.size(), 16 * kMiB);
  for (size_t at = 0; at < written.size(); at += 4 * kMiB) {
    const std::string block = written.substr(at, 4 * kMiB);
    const bool whole = at < 12 * kMiB && block == bytes.substr(at, 4 * kMiB);
    EXPECT_TRUE(whole || block.find_first_not_of('\0') == std::string::npos) << "at byte " << at;
  }
}

}  // namespace
}  // namespace halflife::ckpt
