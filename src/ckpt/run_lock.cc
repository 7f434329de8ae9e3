#include "ckpt/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/host.h"
#include "core/human.h"
#include "core/log.h"

namespace halflife::ckpt {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;
using internal::ErrnoText;

constexpr double kStaleHeartbeatS = 600;

struct Holder {
  std::string host = "an unknown host", boot_id, job_id, started = "an unknown time";
  int64_t pid = 0;
};

std::string BootId() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  return text;
}

std::string JobId() {
  const char* const id = std::getenv("SLURM_JOB_ID");
  return id == nullptr ? "" : id;
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

OrderedJson DescribeUs() {
  return {{"host", HostName()},
          {"pid", ::getpid()},
          {"boot_id", BootId()},
          {"job_id", JobId()},
          {"started", UtcNow()}};
}

Holder ReadHolder(const fs::path& path) {
  Holder holder;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return holder;
  const OrderedJson json = OrderedJson::parse(ReadFile(path, ExitCode::kEnvironment), nullptr,
                                              /*allow_exceptions=*/false);
  if (!json.is_object()) return holder;
  const auto text = [&](const char* key, std::string* to) {
    if (json.contains(key) && json[key].is_string()) *to = json[key].get<std::string>();
  };
  text("host", &holder.host);
  text("boot_id", &holder.boot_id);
  text("job_id", &holder.job_id);
  text("started", &holder.started);
  if (json.contains("pid") && json["pid"].is_number_integer()) holder.pid = json["pid"];
  return holder;
}

// Returns the owner's token, or "" if there is none. Throws Error kCheckpointIo if the file cannot
// be read: this fails a save, but does not mean that the run folder has a new owner.
std::string ReadToken(const fs::path& run_dir) {
  const fs::path path = run_dir / "owner.json";
  std::error_code ignored;
  if (fs::status(path, ignored).type() == fs::file_type::not_found) return "";
  const OrderedJson json = OrderedJson::parse(ReadFile(path, ExitCode::kCheckpointIo), nullptr,
                                              /*allow_exceptions=*/false);
  const bool sound = json.is_object() && json.contains("token") && json["token"].is_string();
  return sound ? json["token"].get<std::string>() : "";
}

// Performs the operations of a save: create, fsync, rename, delete. Returns the current time of the
// file system's clock, which can be compared with the times of its files even if the clocks of the
// hosts differ.
double ProbeWritable(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot create ", directory.string(), ": ",
              error.message(), "; checkpoints could not be saved there");
  const fs::path first = directory / Concat(".probe.", RandomHex(8)),
                 second = first.string() + ".moved";
  struct stat info {};
  try {
    Fd fd = OpenFile(first, O_WRONLY | O_CREAT | O_EXCL, ExitCode::kEnvironment);
    WriteAll(fd.get(), "probe\n", 6, first, ExitCode::kEnvironment);
    Fsync(fd.get(), first, ExitCode::kEnvironment);
    HL_CHECK_AS(ExitCode::kEnvironment, ::fstat(fd.get(), &info) == 0, "cannot stat ",
                first.string(), ": ", ErrnoText(errno));
    fd.Close(first, ExitCode::kEnvironment);
    HL_CHECK_AS(ExitCode::kEnvironment, ::rename(first.c_str(), second.c_str()) == 0,
                "cannot rename in ", directory.string(), ": ", ErrnoText(errno));
    HL_CHECK_AS(ExitCode::kEnvironment, ::unlink(second.c_str()) == 0, "cannot delete in ",
                directory.string(), ": ", ErrnoText(errno));
  } catch (const Error& failure) {
    ::unlink(first.c_str());
    ::unlink(second.c_str());
    HL_FAIL(ExitCode::kEnvironment, directory.string(),
            " is not writable, checkpoints could not be saved there: ", failure.message());
  }
  return static_cast<double>(info.st_mtim.tv_sec) +
         1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
}

double ModifiedAt(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  return static_cast<double>(info.st_mtim.tv_sec) +
         1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
}

Fd TryLock(const fs::path& path) {
  // The file is written, so it must not be a link to another file.
  Fd fd = OpenFile(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, ExitCode::kEnvironment);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  HL_CHECK_AS(ExitCode::kEnvironment, errno == EWOULDBLOCK, "cannot lock ", path.string(), ": ",
              ErrnoText(errno),
              "; does its file system support flock (Lustre: mount option flock)?");
  return {};
}

bool IsDead(const Holder& holder) {
  if (holder.host != HostName() || holder.pid <= 0) return false;
  // The host has restarted.
  if (!holder.boot_id.empty() && holder.boot_id != BootId()) return true;
  return ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
}

std::string InUse(const fs::path& run_dir, const Holder& holder) {
  return Concat("run directory ", run_dir.string(), " is in use by ", holder.host, ":", holder.pid,
                holder.job_id.empty() ? "" : " (job " + holder.job_id + ")", " since ",
                holder.started);
}

// Takes over a lock that the kernel still considers held (by a lost NFS client or a stray child).
// The file is replaced. The old owner finds another token in owner.json and publishes nothing more.
Fd Steal(const fs::path& run_dir, const Holder& holder, double now) {
  const double heartbeat =
      std::max(ModifiedAt(run_dir / "heartbeat.json"), ModifiedAt(run_dir / "owner.json"));
  const double age = now - heartbeat;
  HL_CHECK_AS(ExitCode::kEnvironment, IsDead(holder) || age > kStaleHeartbeatS,
              InUse(run_dir, holder), ", and its last sign of life is ",
              HumanSeconds(std::max(age, 0.0)), " old; --steal-lock needs one older than ",
              HumanSeconds(kStaleHeartbeatS), " or a dead process on this host");
  HL_WARN("ckpt", InUse(run_dir, holder), "; taking over");
  const fs::path path = run_dir / "run.lock";
  HL_CHECK_AS(ExitCode::kEnvironment, ::unlink(path.c_str()) == 0 || errno == ENOENT,
              "cannot replace ", path.string(), ": ", ErrnoText(errno));
  Fd fd = TryLock(path);
  HL_CHECK_AS(ExitCode::kEnvironment, fd, InUse(run_dir, ReadHolder(path)),
              "; it took the lock first");
  return fd;
}

}  // namespace

RunLock RunLock::Acquire(const fs::path& run_dir, const Options& options) {
  const double now = ProbeWritable(run_dir / "ckpt");
  const fs::path path = run_dir / "run.lock";
  Fd fd = TryLock(path);
  if (!fd) {
    const Holder holder = ReadHolder(path);
    HL_CHECK_AS(ExitCode::kEnvironment, options.steal, InUse(run_dir, holder), "; ",
                options.remedy);
    fd = Steal(run_dir, holder, now);
  }
  OrderedJson us = DescribeUs();
  const std::string text = us.dump() + "\n";
  HL_CHECK_AS(ExitCode::kEnvironment, ::ftruncate(fd.get(), 0) == 0, "cannot write ", path.string(),
              ": ", ErrnoText(errno));
  WriteAll(fd.get(), text.data(), text.size(), path, ExitCode::kEnvironment);
  const std::string token = RandomHex(32);
  us["token"] = token;
  AtomicWriteFile(run_dir / "owner.json", us.dump() + "\n", ExitCode::kEnvironment);
  return RunLock(run_dir, std::move(fd), token);
}

RunLock::RunLock(fs::path run_dir, Fd fd, std::string token)
    : run_dir_(std::move(run_dir)), fd_(std::move(fd)), token_(std::move(token)) {}

void RunLock::CheckStillOwner() const {
  if (ReadToken(run_dir_) == token_) return;
  const Holder holder = ReadHolder(run_dir_ / "owner.json");
  HL_FAIL(ExitCode::kEnvironment, "run directory ", run_dir_.string(), " was taken over by ",
          holder.host, ":", holder.pid, " at ", holder.started,
          "; this job publishes nothing more");
}

}  // namespace halflife::ckpt
