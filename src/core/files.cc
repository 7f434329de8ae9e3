#include "core/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "core/error.h"
#include "core/log.h"

namespace halflife {
namespace fs = std::filesystem;

using internal::ErrnoText;

namespace {

// Returns the fix of a frequent error of the system. Callers may add a sentence, so it has no
// period. `creates`: the file may not exist yet.
const char* AdviceFor(int error, bool creates = false) {
  if (error == ENOSPC) return ". Free space on this disk";
  if (error == EDQUOT) return ". Free space of your quota";
  if (error != EACCES) return "";
  return creates ? ". Check its permissions and those of its folder" : ". Check its permissions";
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0 && ::close(fd_) != 0) HL_WARN("files", "close failed: ", ErrnoText(errno));
}

void Fd::Close(const fs::path& path, ExitCode code) {
  const int fd = Release();
  HL_CHECK_AS(code, ::close(fd) == 0, "cannot close ", path.string(), ": ", ErrnoText(errno),
              AdviceFor(errno));
}

Fd OpenFile(const fs::path& path, int flags, ExitCode code, unsigned mode) {
  Fd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  HL_CHECK_AS(code, fd, "cannot open ", path.string(), ": ", ErrnoText(errno),
              AdviceFor(errno, (flags & O_CREAT) != 0));
  return fd;
}

namespace {

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISREG(mode) ? "a file" : "a device";
}

struct stat StatusOf(int fd, const fs::path& path, ExitCode code) {
  struct stat info {};
  HL_CHECK_AS(code, ::fstat(fd, &info) == 0, "cannot stat ", path.string(), ": ", ErrnoText(errno));
  return info;
}

// Opens without waiting for the other end of a pipe.
Fd OpenWithoutWaiting(const fs::path& path, int flags, ExitCode code) {
  Fd fd = OpenFile(path, flags | O_NONBLOCK | O_NOCTTY, code);
  const int status = ::fcntl(fd.get(), F_GETFL);
  HL_CHECK_AS(code, status >= 0 && ::fcntl(fd.get(), F_SETFL, status & ~O_NONBLOCK) == 0,
              "cannot open ", path.string(), ": ", ErrnoText(errno));
  return fd;
}

// `expected` is the probable size in bytes; it is 0 for pipes and files in /proc.
std::string ReadAll(int fd, uint64_t expected, uint64_t max_bytes, const fs::path& path,
                    ExitCode code) {
  constexpr uint64_t kPiece = 1 << 16;
  const auto check_size = [&](uint64_t size) {
    HL_CHECK_AS(code, size <= max_bytes, path.string(), " has more than ", max_bytes,
                " bytes, which is the limit for this file");
  };
  check_size(expected);
  std::string bytes(static_cast<size_t>(expected), '\0');
  size_t done = 0;
  while (true) {
    if (done == bytes.size()) bytes.resize(std::max<size_t>(done + kPiece, done + done / 2));
    const ssize_t n = ::read(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    HL_CHECK_AS(code, n >= 0, "cannot read ", path.string(), ": ", ErrnoText(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
    check_size(done);
  }
  bytes.resize(done);
  return bytes;
}

// The place to which the bytes of an output are written.
struct Destination {
  fs::path path;        // symbolic links are resolved as far as possible
  int descriptor = -1;  // an open descriptor of this process that the path names, e.g. /dev/stdout
};

Destination Resolve(const fs::path& named, ExitCode code) {
  constexpr int kMaxLinks = 40;  // the Linux kernel's limit
  Destination to{.path = named};
  std::error_code ignored;
  for (int links = 0;; ++links) {
    // These names are recognized without their links in /dev, which some containers lack.
    if (to.path == "/dev/stdout") to.descriptor = STDOUT_FILENO;
    if (to.path == "/dev/stderr") to.descriptor = STDERR_FILENO;
    if (to.descriptor >= 0 || !fs::is_symlink(fs::symlink_status(to.path, ignored))) return to;
    HL_CHECK_AS(code, links < kMaxLinks, "cannot open ", named.string(), ": ", ErrnoText(ELOOP));
    // A redirected /dev/stdout must not be opened again: the new descriptor would have its own
    // offset and overwrite earlier output.
    const fs::path folder = fs::weakly_canonical(to.path.parent_path(), ignored);
    if (folder == Concat("/proc/", ::getpid(), "/fd")) {
      to.descriptor = std::atoi(to.path.filename().c_str());
      return to;
    }
    const fs::path target = fs::read_symlink(to.path, ignored);
    to.path = to.path.parent_path() / target;  // an absolute target replaces the parent path
  }
}

// The state of an output path before WriteOutput writes to it.
struct Output {
  Destination to;
  bool exists = false;
  mode_t mode = 0;  // valid if exists
  // If true, a new file replaces the output. Otherwise the bytes are written to the existing file,
  // pipe or device.
  bool is_replaced() const { return to.descriptor < 0 && (!exists || S_ISREG(mode)); }
};

Output FindOutput(const fs::path& path, ExitCode code) {
  Output output{.to = Resolve(path, code)};
  struct stat info {};
  output.exists = output.to.descriptor < 0 && ::stat(output.to.path.c_str(), &info) == 0;
  if (output.exists) output.mode = info.st_mode;
  HL_CHECK_AS(code, !S_ISDIR(output.mode), "cannot write ", path.string(), ": it is a folder");
  return output;
}

void WriteThrough(const Destination& to, std::string_view bytes, ExitCode code) {
  if (to.descriptor >= 0) return WriteAll(to.descriptor, bytes.data(), bytes.size(), to.path, code);
  Fd fd = OpenWithoutWaiting(to.path, O_WRONLY, code);
  WriteAll(fd.get(), bytes.data(), bytes.size(), to.path, code);
  fd.Close(to.path, code);
}

constexpr std::string_view kTemporaryInfix = ".tmp-";
constexpr int kTemporaryDigits = 16;

fs::path TemporaryOf(const fs::path& path) {
  constexpr size_t kLongest = 200;  // file systems limit names to 255 bytes
  return path.parent_path() / Concat(".", path.filename().string().substr(0, kLongest),
                                     kTemporaryInfix, RandomHex(kTemporaryDigits));
}

bool IsTemporary(const std::string& name) {
  const size_t infix = name.rfind(kTemporaryInfix);
  if (!name.starts_with('.') || infix == std::string::npos) return false;
  return IsHex(name.substr(infix + kTemporaryInfix.size()), kTemporaryDigits);
}

// Replaces the file through a temporary one. Error messages name `path`, which the caller knows,
// not the temporary file.
void Replace(const fs::path& path, std::string_view bytes, mode_t mode, ExitCode code) {
  struct stat old {};
  const bool exists = ::lstat(path.c_str(), &old) == 0;
  HL_CHECK_AS(code, !exists || !(S_ISCHR(old.st_mode) || S_ISBLK(old.st_mode)), "cannot replace ",
              path.string(), ": it is a device. Use another path.");
  const fs::path temporary = TemporaryOf(path);
  Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  HL_CHECK_AS(code, fd, "cannot open ", path.string(), " for writing: ", ErrnoText(errno));
  try {
    // On failure the file keeps the mode of a new file.
    if (mode != 0) static_cast<void>(::fchmod(fd.get(), mode));
    WriteAll(fd.get(), bytes.data(), bytes.size(), path, code);
    Fsync(fd.get(), path, code);
    fd.Close(path, code);
    HL_CHECK_AS(code, ::rename(temporary.c_str(), path.c_str()) == 0, "cannot rename ",
                temporary.string(), " to ", path.string(), ": ", ErrnoText(errno));
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  FsyncDirectory(path.parent_path(), code);
}

}  // namespace

std::string ReadFile(const fs::path& path, ExitCode code, uint64_t max_bytes) {
  const Fd fd = OpenWithoutWaiting(path, O_RDONLY, code);
  const struct stat info = StatusOf(fd.get(), path, code);
  HL_CHECK_AS(code, S_ISREG(info.st_mode), path.string(), " is ", KindOf(info.st_mode),
              ", not a file");
  return ReadAll(fd.get(), static_cast<uint64_t>(info.st_size), max_bytes, path, code);
}

std::string ReadStream(const fs::path& path, ExitCode code, uint64_t max_bytes) {
  if (path == "-") return ReadAll(STDIN_FILENO, 0, max_bytes, "standard input", code);
  const Fd fd = OpenWithoutWaiting(path, O_RDONLY, code);
  const struct stat info = StatusOf(fd.get(), path, code);
  HL_CHECK_AS(code, !S_ISDIR(info.st_mode), path.string(), " is a folder, not a file");
  return ReadAll(fd.get(), static_cast<uint64_t>(info.st_size), max_bytes, path, code);
}

void RequireAppendable(const fs::path& path, ExitCode code) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  HL_CHECK_AS(code, !exists(status) || is_regular_file(status) || is_character_file(status),
              path.string(),
              " exists and is not a file. Remove it; the program then creates a new file.");
}

void WriteAll(int fd, const void* data, size_t bytes, const fs::path& path, ExitCode code) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    HL_CHECK_AS(code, n >= 0, "cannot write ", path.string(), ": ", ErrnoText(errno),
                AdviceFor(errno));
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void Fsync(int fd, const fs::path& path, ExitCode code) {
  HL_CHECK_AS(code, ::fsync(fd) == 0, "cannot fsync ", path.string(), ": ", ErrnoText(errno),
              AdviceFor(errno));
}

void FsyncDirectory(const fs::path& directory, ExitCode code) {
  const Fd fd =
      OpenFile(directory.empty() ? fs::path(".") : directory, O_RDONLY | O_DIRECTORY, code);
  Fsync(fd.get(), directory, code);
}

void AtomicWriteFile(const fs::path& path, std::string_view bytes, ExitCode code) {
  Replace(path, bytes, 0, code);
}

bool IsStandardOutput(const fs::path& path) {
  return path == "-" || Resolve(path, ExitCode::kEnvironment).descriptor == STDOUT_FILENO;
}

void WriteOutput(const fs::path& path, std::string_view bytes, ExitCode code) {
  if (path == "-")
    return WriteAll(STDOUT_FILENO, bytes.data(), bytes.size(), "standard output", code);
  const Output output = FindOutput(path, code);
  if (!output.is_replaced()) return WriteThrough(output.to, bytes, code);
  Replace(output.to.path, bytes, output.mode & 0777, code);
}

void RequireWritable(const fs::path& path, ExitCode code) {
  if (path == "-") return;
  const Output output = FindOutput(path, code);
  if (output.to.descriptor >= 0) return;
  // access() of FOLDER/. fails if FOLDER is not a folder.
  const fs::path folder = output.to.path.parent_path() / ".";
  const bool can = output.is_replaced() ? ::access(folder.c_str(), W_OK | X_OK) == 0
                                        : ::access(output.to.path.c_str(), W_OK) == 0;
  HL_CHECK_AS(code, can, "cannot open ", path.string(), " for writing: ", ErrnoText(errno));
}

std::string TextOf(const fs::filesystem_error& error) {
  const std::string path = error.path1().string();
  return Concat(path, path.empty() ? "" : ": ", error.code().message());
}

void RemoveTemporaries(const fs::path& directory) noexcept {
  std::error_code error, ignored;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (IsTemporary(entry->path().filename().string())) fs::remove(entry->path(), ignored);
  }
}

fs::path NamedFolder(fs::path path) {
  while (path.has_relative_path() && (path.filename().empty() || path.filename() == "."))
    path = path.parent_path();
  return path;
}

fs::path TemporaryPathFor(const fs::path& path, std::string_view suffix) {
  return NamedFolder(path).concat(".tmp.").concat(suffix);
}

void PublishDirectory(const fs::path& from, const fs::path& named, ExitCode code) {
  const fs::path to = NamedFolder(named);
  long result =
      ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  // NFS and old kernels do not support RENAME_NOREPLACE.
  if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
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
  HL_CHECK_AS(code, ::statvfs(directory.c_str(), &info) == 0, "cannot read the free space of ",
              directory.string(), ": ", ErrnoText(errno));
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

bool IsHex(std::string_view text, int digits) {
  return std::ssize(text) == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
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
