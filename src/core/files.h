// Files that are either whole or absent: write to a temporary name, fsync, rename, fsync the
// folder. Every failure throws Error with the given code, the path and the system's words.
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

// The whole of a regular file, links followed. What is none (a folder, pipe, socket or device) is
// refused at once, and so is more than `max_bytes`: such a file is not what its place wants.
inline constexpr uint64_t kMaxFileBytes = 1ull << 30;
std::string ReadFile(const std::filesystem::path& path, ExitCode code,
                     uint64_t max_bytes = kMaxFileBytes);
// As ReadFile for what a user names as text: pipes and devices are read to their end, too, and "-"
// is standard input. A pipe that nobody has open for writing is empty.
std::string ReadStream(const std::filesystem::path& path, ExitCode code,
                       uint64_t max_bytes = kMaxFileBytes);
// For files that grow line by line: error where `path` is there, but neither a file nor a device. A
// pipe would take the first lines, and then make the writer wait for ever.
void RequireAppendable(const std::filesystem::path& path, ExitCode code);
void WriteAll(int fd, const void* data, size_t bytes, const std::filesystem::path& path,
              ExitCode code);
void Fsync(int fd, const std::filesystem::path& path, ExitCode code);
void FsyncDirectory(const std::filesystem::path& directory, ExitCode code);

// For files of our own folders: puts a new file in the place of `path`, whatever stood there (but
// no folder), atomically and durably. The temporary, `.NAME.tmp-<hex>` beside it, has a name that
// nothing had before and is removed on failure.
void AtomicWriteFile(const std::filesystem::path& path, std::string_view bytes, ExitCode code);
// For what a user names: as AtomicWriteFile, but links are followed (what they lead to is replaced
// and keeps its permissions), what is no regular file (a pipe, /dev/null, /dev/stdout) is written
// through, and "-" is standard output.
void WriteOutput(const std::filesystem::path& path, std::string_view bytes, ExitCode code);
// Before the work whose result it is: WriteOutput's error where `path` has no place to write to.
// Writes nothing; a full disk, say, shows later.
void RequireWritable(const std::filesystem::path& path, ExitCode code);
// "-", or a name of standard output: what a program says beside its results then goes elsewhere.
bool IsStandardOutput(const std::filesystem::path& path);
// "PATH: Input/output error" of what std::filesystem throws; it does not always know the path.
std::string TextOf(const std::filesystem::filesystem_error& error);

// Deletes what AtomicWriteFile left in `directory` where a process was killed in it. The caller is
// the folder's only writer. A failure is left for the next time.
void RemoveTemporaries(const std::filesystem::path& directory) noexcept;

// Renames a finished folder into place and makes that durable. Fails if `to` exists (also when it
// is empty). `to` is read as by NamedFolder.
void PublishDirectory(const std::filesystem::path& from, const std::filesystem::path& to,
                      ExitCode code);

// "folder" of "folder/" and "folder/.", as a user or a shell's completion may write it: the last
// component is the name, and parent_path() what the folder lies in.
std::filesystem::path NamedFolder(std::filesystem::path path);
// FOLDER.tmp.SUFFIX beside NamedFolder(path), for what PublishDirectory then renames to it.
std::filesystem::path TemporaryBeside(const std::filesystem::path& path, std::string_view suffix);

uint64_t FreeBytes(const std::filesystem::path& directory, ExitCode code);

// From the kernel; for names of temporaries and attempts, never for training.
std::string RandomHex(int digits);
bool IsHex(std::string_view text, int digits);  // what RandomHex gives

}  // namespace halflife
