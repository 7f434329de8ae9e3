// Files that are either whole or absent: write to a temporary name, fsync, rename, fsync the folder.
// Every failure throws Error with the given code, the path and the system's words.
//
//   AtomicWriteFile(run / "config.textproto", text, ExitCode::kEnvironment);
//   PublishDirectory(dataset_tmp, dataset, ExitCode::kData);   // refuses to replace
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "core/exit_code.h"

namespace halflife {

// An open file descriptor. Move-only; the destructor closes and logs a failure.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  // close(2) with its result checked: some file systems report a failed write only here.
  void Close(const std::filesystem::path& path, ExitCode code);

 private:
  int fd_ = -1;
};

Fd OpenFile(const std::filesystem::path& path, int flags, ExitCode code, unsigned mode = 0644);

std::string ReadFile(const std::filesystem::path& path, ExitCode code);
void WriteAll(int fd, const void* data, size_t bytes, const std::filesystem::path& path,
              ExitCode code);
void Fsync(int fd, const std::filesystem::path& path, ExitCode code);
void FsyncDirectory(const std::filesystem::path& directory, ExitCode code);

// Replaces `path` atomically and durably. The temporary `path.tmp` is removed on failure.
void AtomicWriteFile(const std::filesystem::path& path, std::string_view bytes, ExitCode code);

// Renames a finished folder into place and makes that durable. Fails if `to` exists (also when it is empty).
void PublishDirectory(const std::filesystem::path& from, const std::filesystem::path& to,
                      ExitCode code);

uint64_t FreeBytes(const std::filesystem::path& directory, ExitCode code);

std::string RandomHex(
    int digits);  // from the kernel; for names of temporaries and attempts, never for training

}  // namespace halflife
