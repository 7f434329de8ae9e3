// Files that are either complete or absent: write under a temporary name, fsync, rename, fsync the
// folder. Every failure throws an Error with the given code, the path and the system's error text.
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

// Owns an open file descriptor. Move-only; the destructor closes it and logs a failure.
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
  // Closes the descriptor and checks the result of close(2): some file systems report a failed
  // write only here.
  void Close(const std::filesystem::path& path, ExitCode code);

 private:
  int fd_ = -1;
};

Fd OpenFile(const std::filesystem::path& path, int flags, ExitCode code, unsigned mode = 0644);

// Returns the content of a regular file; symbolic links are followed. Throws at once if `path` is a
// folder, pipe, socket or device, or if it holds more than `max_bytes`, which no valid file does.
inline constexpr uint64_t kMaxFileBytes = 1ull << 30;
std::string ReadFile(const std::filesystem::path& path, ExitCode code,
                     uint64_t max_bytes = kMaxFileBytes);
// As ReadFile, for text that a user names: pipes and devices are also read, up to their end, and
// "-" is standard input. A pipe that no process has open for writing is empty.
std::string ReadStream(const std::filesystem::path& path, ExitCode code,
                       uint64_t max_bytes = kMaxFileBytes);
// For files that grow line by line. Throws if `path` exists but is neither a file nor a character
// device. A pipe would accept the first lines and then block the writer indefinitely.
void RequireAppendable(const std::filesystem::path& path, ExitCode code);
void WriteAll(int fd, const void* data, size_t bytes, const std::filesystem::path& path,
              ExitCode code);
void Fsync(int fd, const std::filesystem::path& path, ExitCode code);
void FsyncDirectory(const std::filesystem::path& directory, ExitCode code);

// For files in the program's own folders. Atomically and durably replaces the entry at `path`
// (except a folder) by a new file. The temporary file, `.NAME.tmp-<hex>` in the same folder, has a
// new random name and is removed on failure.
void AtomicWriteFile(const std::filesystem::path& path, std::string_view bytes, ExitCode code);
// For paths that a user names. As AtomicWriteFile, with these differences:
//
// - Symbolic links are followed. The target is replaced and keeps its permissions.
// - If `path` is not a regular file (a pipe, /dev/null, /dev/stdout), the bytes are written to it
//   directly.
// - "-" is standard output.
void WriteOutput(const std::filesystem::path& path, std::string_view bytes, ExitCode code);
// Call this before the work that produces the output: throws WriteOutput's error if `path` cannot
// be written. Writes nothing, so that some failures, such as a full disk, only show later.
void RequireWritable(const std::filesystem::path& path, ExitCode code);
// True if `path` is "-" or another name of standard output. A program then prints everything except
// its results elsewhere.
bool IsStandardOutput(const std::filesystem::path& path);
// Returns the text of an exception of std::filesystem, for example "PATH: Input/output error". The
// path is omitted if the exception does not know it.
std::string TextOf(const std::filesystem::filesystem_error& error);

// Deletes the temporary files that AtomicWriteFile leaves in `directory` if the process is killed.
// The caller must be the folder's only writer. Failures are ignored; a later call tries again.
void RemoveTemporaries(const std::filesystem::path& directory) noexcept;

// Renames a finished folder to `to` and makes the rename durable. Fails if `to` exists, even if it
// is empty. `to` is normalized by NamedFolder.
void PublishDirectory(const std::filesystem::path& from, const std::filesystem::path& to,
                      ExitCode code);

// Removes a trailing "/" or "/.", which a user or a shell's completion may add: "folder/" and
// "folder/." become "folder". The last component is then the folder's name, and parent_path() is
// the folder that contains it.
std::filesystem::path NamedFolder(std::filesystem::path path);
// Returns FOLDER.tmp.SUFFIX in the same parent folder, which PublishDirectory can later rename to
// FOLDER = NamedFolder(path).
std::filesystem::path TemporaryPathFor(const std::filesystem::path& path, std::string_view suffix);

uint64_t FreeBytes(const std::filesystem::path& directory, ExitCode code);

// `digits` random hexadecimal digits from the kernel. For the names of temporary files and
// attempts, never for training.
std::string RandomHex(int digits);
bool IsHex(std::string_view text, int digits);  // True if `text` has the form of RandomHex(digits).

}  // namespace halflife
