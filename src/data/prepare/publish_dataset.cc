#include "data/prepare/publish_dataset.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

constexpr char kInfix[] = ".tmp-";
constexpr int kDigits = 8;  // random hexadecimal digits after the infix

Fd OpenFolder(const fs::path& path) {
  return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// Returns true if `fd` is still the folder that `path` names. Another process may have removed it
// before it was locked.
bool StillThere(const Fd& fd, const fs::path& path) {
  struct stat by_fd {
  }, by_path{};
  return ::fstat(fd.get(), &by_fd) == 0 && ::stat(path.c_str(), &by_path) == 0 &&
         by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev;
}

// Returns true if `name` has the form that MakeTemporary creates. A user's books.tmp-backup next to
// books does not.
bool IsTemporaryOf(const std::string& name, const fs::path& out) {
  const std::string prefix = out.filename().string() + kInfix;
  return name.starts_with(prefix) && IsHex(name.substr(prefix.size()), kDigits);
}

// Removes temporary folders of `out` whose process has ended. The lock of a living process cannot
// be acquired.
void RemoveDeadTemporaries(const fs::path& out) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(out.parent_path(), ignored)) {
    if (!IsTemporaryOf(entry.path().filename().string(), out)) continue;
    const Fd fd = OpenFolder(entry.path());
    if (!fd) continue;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      HL_WARN("data", "removing ", entry.path().string(), ", left by a prepare that was killed");
      fs::remove_all(entry.path(), ignored);
    } else {
      HL_WARN("data", entry.path().string(),
              errno == EWOULDBLOCK ? " belongs to another prepare that is running; it is kept"
                                   : " may be left over from a prepare that was killed. Remove it "
                                     "when no prepare is running.");
    }
  }
}

// Skips symbolic links: a token file that is linked is the user's, and may be on a read-only file
// system, where fsync fails. The link itself is an entry of its folder.
void FsyncTree(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_symlink()) continue;
    if (entry.is_directory()) {
      FsyncTree(entry.path());
    } else {
      Fsync(OpenFile(entry.path(), O_RDONLY, ExitCode::kData).get(), entry.path(), ExitCode::kData);
    }
  }
  FsyncDirectory(folder, ExitCode::kData);
}

}  // namespace

OutputFolder::OutputFolder(const fs::path& out) {
  out_ = NamedFolder(fs::absolute(out).lexically_normal());
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, !fs::exists(fs::symlink_status(out_, error)), "--out ",
              out_.string(),
              " exists already, and a dataset is never overwritten. Choose another name, "
              "or remove it first.");
  fs::create_directories(out_.parent_path(), error);
  HL_CHECK_AS(ExitCode::kData, !error, "cannot create the folder ", out_.parent_path().string(),
              ": ", error.message());
  RemoveDeadTemporaries(out_);
  // A retry is only needed if another process removed the folder first, which cannot continue for
  // long.
  constexpr int kAttempts = 20;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (MakeTemporary()) return;
  }
  HL_FAIL(ExitCode::kData, "cannot create a temporary folder next to ", out_.string(), ": each of ",
          kAttempts, " was removed or cannot be accessed");
}

bool OutputFolder::MakeTemporary() {
  temporary_ = out_;
  temporary_ += kInfix + RandomHex(kDigits);
  if (::mkdir(temporary_.c_str(), 0777) != 0) {
    HL_CHECK_AS(ExitCode::kData, errno == EEXIST, "cannot create ", temporary_.string(), ": ",
                internal::ErrnoText(errno));
    return false;
  }
  lock_ = OpenFolder(temporary_);
  const int problem = lock_ ? 0 : errno;
  // If folders cannot be locked (on some network file systems), no process removes any.
  const bool others = lock_ && ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (lock_ && !others && StillThere(lock_, temporary_)) return true;
  if (!others) ::rmdir(temporary_.c_str());
  HL_CHECK_AS(ExitCode::kData, problem == 0 || problem == ENOENT, "cannot open ",
              temporary_.string(), ": ", internal::ErrnoText(problem));
  return false;
}

OutputFolder::~OutputFolder() {
  if (published_) return;
  std::error_code error;
  std::filesystem::remove_all(temporary_, error);
  if (error) {
    HL_WARN("data", "cannot remove ", temporary_.string(), ": ", error.message());
  }
}

void OutputFolder::Publish() {
  FsyncTree(temporary_);
  HL_FAULT_POINT("data.publish", ExitCode::kData);
  PublishDirectory(temporary_, out_, ExitCode::kData);
  published_ = true;
}

}  // namespace halflife::data
