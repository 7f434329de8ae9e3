#include "core/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.h"
#include "core/log.h"

namespace halflife {
namespace fs = std::filesystem;

using internal::ErrnoText;

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0 && ::close(fd_) != 0) HL_WARN("files", "close failed: ", ErrnoText(errno));
}

void Fd::Close(const fs::path& path, ExitCode code) {
  const int fd = Release();
  HL_CHECK_AS(code, ::close(fd) == 0, "cannot close ", path.string(), ": ", ErrnoText(errno));
}

Fd OpenFile(const fs::path& path, int flags, ExitCode code, unsigned mode) {
  Fd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  HL_CHECK_AS(code, fd, "cannot open ", path.string(), ": ", ErrnoText(errno));
  return fd;
}

std::string ReadFile(const fs::path& path, ExitCode code) {
  const Fd fd = OpenFile(path, O_RDONLY, code);
  struct stat info {};
  HL_CHECK_AS(code, ::fstat(fd.get(), &info) == 0, "cannot stat ", path.string(), ": ",
              ErrnoText(errno));
  HL_CHECK_AS(code, !S_ISDIR(info.st_mode), path.string(), " is a folder, not a file");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (true) {
    if (done == bytes.size()) bytes.resize(bytes.size() + 4096);  // pipes and /proc report size 0
    const ssize_t n = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    HL_CHECK_AS(code, n >= 0, "cannot read ", path.string(), ": ", ErrnoText(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

void WriteAll(int fd, const void* data, size_t bytes, const fs::path& path, ExitCode code) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    HL_CHECK_AS(code, n >= 0, "cannot write ", path.string(), ": ", ErrnoText(errno));
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void Fsync(int fd, const fs::path& path, ExitCode code) {
  HL_CHECK_AS(code, ::fsync(fd) == 0, "cannot fsync ", path.string(), ": ", ErrnoText(errno));
}

void FsyncDirectory(const fs::path& directory, ExitCode code) {
  const Fd fd =
      OpenFile(directory.empty() ? fs::path(".") : directory, O_RDONLY | O_DIRECTORY, code);
  Fsync(fd.get(), directory, code);
}

void AtomicWriteFile(const fs::path& path, std::string_view bytes, ExitCode code) {
  fs::path temporary = path;
  temporary += ".tmp";
  try {
    Fd fd = OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC, code);
    WriteAll(fd.get(), bytes.data(), bytes.size(), temporary, code);
    Fsync(fd.get(), temporary, code);
    fd.Close(temporary, code);
    HL_CHECK_AS(code, ::rename(temporary.c_str(), path.c_str()) == 0, "cannot rename ",
                temporary.string(), " to ", path.string(), ": ", ErrnoText(errno));
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  FsyncDirectory(path.parent_path(), code);
}

void PublishDirectory(const fs::path& from, const fs::path& to, ExitCode code) {
  long result =
      ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {  // NFS and old kernels
    std::error_code ignored;
    HL_CHECK_AS(code, !fs::exists(to, ignored), to.string(), " exists already");
    result = ::rename(from.c_str(), to.c_str());
  }
  HL_CHECK_AS(code, result == 0, "cannot publish ", from.string(), " as ", to.string(), ": ",
              errno == EEXIST ? std::string("it exists already") : ErrnoText(errno));
  FsyncDirectory(fs::absolute(to).parent_path(), code);
}

uint64_t FreeBytes(const fs::path& directory, ExitCode code) {
  struct statvfs info {};
  HL_CHECK_AS(code, ::statvfs(directory.c_str(), &info) == 0, "cannot ask for the free space of ",
              directory.string(), ": ", ErrnoText(errno));
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

std::string RandomHex(int digits) {
  std::string bytes((digits + 1) / 2, '\0');
  HL_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
           "getrandom: ", ErrnoText(errno));
  std::string text;
  for (const char byte : bytes) {
    for (const int shift : {4, 0}) text += "0123456789abcdef"[(byte >> shift) & 15];
  }
  text.resize(digits);
  return text;
}

}  // namespace halflife
