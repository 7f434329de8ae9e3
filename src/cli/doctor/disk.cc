
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "cli/doctor/checks.h"
#include "cli/doctor/system_files.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"

namespace halflife::cli::doctor {
namespace {

namespace fs = std::filesystem;

constexpr ExitCode kCode = ExitCode::kEnvironment;
constexpr uint64_t kSyncBytes = 16ull << 20;
constexpr uint64_t kTestBytes = 512ull << 20;
constexpr double kDiskTestSeconds = 4;
constexpr uint64_t kMinFree = 10ull << 30;
constexpr double kSlow = 50;  // MB/s. At this speed 1 GB of state takes 20 s.

struct FileSystemNote {
  const char* type;  // The prefix of the kernel's name for the file system.
  Verdict verdict;
  const char *note, *remedy;
};
constexpr FileSystemNote kNotes[] = {
    {"tmpfs", Verdict::kWarn, "in memory: checkpoints are lost after a restart",
     "choose a folder on a disk: --run DIR"},
    {"ramfs", Verdict::kWarn, "in memory: checkpoints are lost after a restart",
     "choose a folder on a disk: --run DIR"},
    {"overlay", Verdict::kOk, "a container's own layer: deleted with the container", ""},
    {"nfs", Verdict::kOk,
     "other machines may see new files late; a run's lock needs NFSv4 or lockd", ""},
    {"lustre", Verdict::kOk, "spread large files: lfs setstripe -c -1 RUN", ""},
    {"fuse", Verdict::kWarn, "renames may not be atomic, which checkpoints rely on",
     "train on a local or parallel file system, and copy published steps"},
};

// Deletes the test file under both of its names, before and after the rename.
struct Remove {
  std::vector<fs::path> paths;
  ~Remove() {
    for (const fs::path& path : paths) ::unlink(path.c_str());
  }
};

Finding DescribeFileSystem(const CheckInputs& inputs, const fs::path& folder) {
  const std::optional<Mount> mount =
      FindMount(inputs.Read(inputs.proc / "self/mountinfo"), folder.string());
  const uint64_t free = FreeBytes(folder, kCode);
  Finding finding{Verdict::kOk,
                  "run folder",
                  Concat(folder.string(), ", ", mount ? mount->type : "unknown file system", ", ",
                         HumanBytes(free), " free"),
                  "",
                  {{"free_bytes", static_cast<double>(free)}}};
  for (const FileSystemNote& row : kNotes) {
    if (!mount || !mount->type.starts_with(row.type)) continue;
    finding.verdict = row.verdict;
    finding.text += Concat("; ", row.note);
    finding.remedy = row.remedy;
  }
  if (free < kMinFree) {
    finding.verdict = Verdict::kWarn;
    finding.text += "; a checkpoint takes 12 bytes per parameter, and two are kept";
    finding.remedy = Concat("free space below ", folder.string(), ", or choose another: --run DIR");
  }
  return finding;
}

}  // namespace

fs::path ExistingFolder(const fs::path& path) {
  fs::path folder = fs::absolute(path).lexically_normal();
  std::error_code ignored;
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return fs::canonical(folder);
}

DiskSpeed MeasureDisk(const fs::path& folder, uint64_t max_bytes, double max_seconds) {
  const fs::path before = folder / (".halflife-doctor-" + RandomHex(8) + ".tmp");
  fs::path after = before;
  after.replace_extension(".done");
  const Remove cleanup{{before, after}};
  // The data must not be zeros, because some file systems do not store zeros.
  std::vector<uint32_t> block(kSyncBytes / 4);
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint32_t>(i) * 2654435761u;
  DiskSpeed speed;
  Fd fd = OpenFile(before, O_WRONLY | O_CREAT | O_EXCL, kCode);
  // The large file has no name, so it disappears even if this process is killed.
  ::unlink(before.c_str());
  const Stopwatch watch;
  do {
    const uint64_t bytes = std::min(kSyncBytes, max_bytes - speed.bytes);
    WriteAll(fd.get(), block.data(), bytes, before, kCode);
    Fsync(fd.get(), before, kCode);
    speed.bytes += bytes;
  } while (speed.bytes < max_bytes && watch.Seconds() < max_seconds);
  speed.mb_per_s = 1e-6 * static_cast<double>(speed.bytes) / std::max(watch.Seconds(), 1e-9);
  fd.Close(before, kCode);
  OpenFile(before, O_WRONLY | O_CREAT | O_EXCL, kCode).Close(before, kCode);
  HL_CHECK_AS(kCode, ::rename(before.c_str(), after.c_str()) == 0, "cannot rename ",
              before.string(), " to ", after.string(), ": ", internal::ErrnoText(errno));
  FsyncDirectory(folder, kCode);
  return speed;
}

std::vector<Finding> CheckDisk(const CheckInputs& inputs) {
  const fs::path folder = ExistingFolder(inputs.run_folder);
  std::vector<Finding> findings = {DescribeFileSystem(inputs, folder)};
  if (!inputs.measure) return findings;
  try {
    const uint64_t max_bytes = std::min(kTestBytes, FreeBytes(folder, kCode) / 4);
    if (max_bytes < kSyncBytes) {
      findings.push_back({Verdict::kFail, "disk test", "not enough free space for the test",
                          "free some space, or choose another folder: --run DIR"});
      return findings;
    }
    const DiskSpeed speed = MeasureDisk(folder, max_bytes, kDiskTestSeconds);
    Finding finding{Verdict::kOk,
                    "disk test",
                    Concat("write, fsync, rename: ", HumanBytes(speed.bytes), " at ",
                           Fixed(speed.mb_per_s, 0), " MB/s"),
                    "",
                    {{"mb_per_s", speed.mb_per_s}, {"bytes", static_cast<double>(speed.bytes)}}};
    if (speed.mb_per_s < kSlow) {
      finding.verdict = Verdict::kWarn;
      finding.text += Concat(": below ", kSlow, " MB/s, a save blocks training for a long time");
      finding.remedy = "choose a faster folder: --run DIR";
    }
    findings.push_back(finding);
  } catch (const Error& error) {
    findings.push_back(
        {Verdict::kFail, "disk test", error.message(), "choose a writable folder: --run DIR"});
  }
  return findings;
}

}  // namespace halflife::cli::doctor
