// Checks the limits of the process, and the shared memory for communication of ranks on one
// machine.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/doctor/checks.h"
#include "cli/doctor/system_files.h"
#include "core/concat.h"
#include "core/human.h"

namespace halflife::cli::doctor {
namespace {

namespace fs = std::filesystem;

// NCCL and Open MPI use about 10 MiB per rank.
constexpr uint64_t kMinSharedMemory = 512ull << 20;

struct LimitRow {
  const char *row, *name;
  bool is_bytes;
  uint64_t fail_below, warn_below;
  const char *why, *remedy;
};
constexpr LimitRow kLimits[] = {
    {"Max open files", "nofile", false, 64, 1024, "shards and sockets are files",
     "ulimit -n 65536"},
    {"Max stack size", "stack", true, 256 << 10, 1 << 20, "threads need more", "ulimit -s 8192"},
};

std::string LimitText(uint64_t limit, bool is_bytes) {
  if (limit == kUnlimited) return "unlimited";
  return is_bytes ? HumanBytes(limit) : Concat(limit);
}

Finding Judge(const LimitRow& row, uint64_t limit) {
  Finding finding{Verdict::kOk, row.name, LimitText(limit, row.is_bytes)};
  if (limit < row.warn_below) {
    finding.verdict = limit < row.fail_below ? Verdict::kFail : Verdict::kWarn;
    finding.text += Concat(": ", row.why);
    finding.remedy = row.remedy;
  }
  return finding;
}

// Checks the limit of locked memory. InfiniBand adapters access registered memory, which is locked.
Finding LockedMemory(uint64_t limit, bool has_infiniband) {
  Finding finding{Verdict::kOk, "memlock", LimitText(limit, true)};
  if (limit == kUnlimited) return finding;
  if (!has_infiniband) {
    finding.text += "; enough without InfiniBand";
    return finding;
  }
  finding.verdict = Verdict::kWarn;
  finding.text += ": InfiniBand locks all memory that it transfers";
  finding.remedy =
      "ulimit -l unlimited (permanently: '* - memlock unlimited' in "
      "/etc/security/limits.conf)";
  return finding;
}

// Returns whether a process still has the file mapped.
bool IsMapped(const CheckInputs& inputs, const std::string& file) {
  std::error_code ignored;
  for (const fs::directory_entry& process : fs::directory_iterator(inputs.proc, ignored)) {
    const std::string name = process.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (inputs.Read(process.path() / "maps").find(file) != std::string::npos) return true;
  }
  return false;
}

// Finds the segments of Open MPI and NCCL that this user's dead processes left.
Finding Leftovers(const CheckInputs& inputs) {
  std::string files;
  uint64_t bytes = 0;
  int count = 0;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(inputs.shm, ignored)) {
    const std::string name = entry.path().filename();
    struct stat info {};
    const bool ours = name.starts_with("vader_segment.") || name.starts_with("sm_segment.") ||
                      name.starts_with("nccl-");
    if (!ours || ::lstat(entry.path().c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_uid != ::geteuid() || IsMapped(inputs, name)) {
      continue;
    }
    files += Concat(" ", entry.path().string());
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    ++count;
  }
  if (count == 0)
    return {Verdict::kOk, "dead jobs", Concat("left no segments in ", inputs.shm.string())};
  return {Verdict::kWarn,
          "dead jobs",
          Concat("left ", Counted(count, "segment"), " of ", HumanBytes(bytes), " in ",
                 inputs.shm.string()),
          Concat("rm", files),
          {{"segments", count}, {"bytes", static_cast<double>(bytes)}}};
}

}  // namespace

std::vector<Finding> CheckLimits(const CheckInputs& inputs) {
  const std::string limits = inputs.Read(inputs.proc / "self/limits");
  std::vector<Finding> findings;
  for (const LimitRow& row : kLimits) {
    if (const auto limit = ParseLimit(limits, row.row)) findings.push_back(Judge(row, *limit));
  }
  std::error_code ignored;
  if (const auto limit = ParseLimit(limits, "Max locked memory")) {
    const fs::path infiniband = inputs.sys / "class/infiniband";
    const bool has = fs::exists(infiniband, ignored) && !fs::is_empty(infiniband, ignored);
    findings.push_back(LockedMemory(*limit, has));
  }
  if (const auto limit = ParseLimit(limits, "Max core file size")) {
    findings.push_back({Verdict::kOk, "core",
                        *limit == 0 ? "0: a crash leaves no core file (ulimit -c unlimited)"
                                    : LimitText(*limit, true)});
  }
  if (findings.empty()) {
    findings.push_back(
        {Verdict::kWarn, "limits", "/proc/self/limits cannot be read", "mount /proc"});
  }
  return findings;
}

std::vector<Finding> CheckSharedMemory(const CheckInputs& inputs) {
  const std::string name = inputs.shm.string();
  struct statvfs info {};
  if (::statvfs(inputs.shm.c_str(), &info) != 0 || ::access(inputs.shm.c_str(), W_OK) != 0) {
    return {{Verdict::kFail, name,
             "does not exist or is not writable: ranks on one machine need it",
             "mount -t tmpfs tmpfs /dev/shm"}};
  }
  const uint64_t total = static_cast<uint64_t>(info.f_blocks) * info.f_frsize;
  const uint64_t free = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  Finding size{
      Verdict::kOk,
      name,
      Concat(HumanBytes(total), ", ", HumanBytes(free), " free"),
      "",
      {{"total_bytes", static_cast<double>(total)}, {"free_bytes", static_cast<double>(free)}}};
  if (free < kMinSharedMemory) {
    size.verdict = Verdict::kWarn;
    size.text += Concat(": ranks on one machine may need ", HumanBytes(kMinSharedMemory));
    size.remedy = total < kMinSharedMemory
                      ? "mount -o remount,size=2g /dev/shm (a container: docker run --shm-size=2g)"
                      : "run ls -l /dev/shm to find the large files";
  }
  return {size, Leftovers(inputs)};
}

}  // namespace halflife::cli::doctor
