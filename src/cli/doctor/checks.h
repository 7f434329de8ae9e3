// The checks of `halflife doctor`: a table of functions that each check one thing and return
// findings. Local checks run in each process before the ranks connect. World checks are collective.
//
// A new check is a function here and a row in checks.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_ref.h"
#include "core/versions.h"
#include "dist/communicator.h"
#include "dist/rank_context.h"

namespace halflife::cli::doctor {

// The findings of `halflife doctor`, one line each: a verdict, the thing that was checked, the
// result, and the command that fixes it. launch/setup --check prints the same form
// (launch/common.sh).
//
//   OK    HDF5             1.10.8, /usr/lib/x86_64-linux-gnu/libhdf5_serial.so.103.3.0
//   WARN  memlock          8.0 MiB, and InfiniBand registers memory
//         fix: ulimit -l unlimited
enum class Verdict { kOk, kWarn, kFail };
const char* Name(Verdict verdict);  // "OK", "WARN", "FAIL"

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string name;         // "HDF5", "memlock"
  std::string text;         // The result, with units.
  std::string remedy = {};  // Empty: no fix is needed.
  // The measurements in the text, for example "mb_per_s".
  std::map<std::string, double> values = {};
};

struct Group {
  std::string title;
  std::vector<Finding> findings;
};

struct Report {
  std::string version, git_hash, host;
  int world_size = 1;
  std::vector<Group> groups;

  int Count(Verdict verdict) const;
};

std::string ReportText(const Report& report);
// Returns an object with these keys: halflife, git_hash, host, world_size, num_ok, num_warn,
// num_fail, findings: a list of {group, name, verdict, text, remedy, values}.
nlohmann::ordered_json ReportJson(const Report& report);

// The places that checks read. Tests use folders of their own.
struct CheckInputs {
  std::filesystem::path proc = "/proc", sys = "/sys", shm = "/dev/shm";
  // Checkpoints are written below it. It need not exist.
  std::filesystem::path run_folder = "runs";
  bool measure = true;  // Run the disk and all-reduce tests.
  LauncherEvidence launcher = {};

  // Returns the text of a system file, or "" if it does not exist.
  std::string Read(const std::filesystem::path& path) const;
};

struct LocalCheck {
  const char* group;
  std::vector<Finding> (*run)(const CheckInputs&);
};
std::span<const LocalCheck> LocalChecks();

struct WorldCheck {
  const char* group;
  // Returns the findings on rank 0, and an empty list on the others.
  std::vector<Finding> (*run)(const CheckInputs&, dist::RankContext&);
};
std::span<const WorldCheck> WorldChecks();

// Runs one check. An exception becomes a FAIL with its message.
Group Run(const LocalCheck& check, const CheckInputs& inputs);

// libraries.cc
std::vector<Finding> CheckLibraries(const CheckInputs& inputs);
std::vector<Finding> CheckMpirun(const CheckInputs& inputs);
// gpu.cc
std::vector<Finding> CheckGpus(const CheckInputs& inputs);
// Throws Error kEnvironment if the device is a GPU that this build's kernels cannot run on.
void RequireUsableGpu(Device device);
// cpu.cc
std::vector<Finding> CheckCpu(const CheckInputs& inputs);
std::vector<Finding> CheckBinding(const CheckInputs& inputs);
// limits.cc
std::vector<Finding> CheckLimits(const CheckInputs& inputs);
std::vector<Finding> CheckSharedMemory(const CheckInputs& inputs);
// network.cc
std::vector<Finding> CheckHostName(const CheckInputs& inputs);
std::vector<Finding> CheckInfiniBand(const CheckInputs& inputs);
std::vector<Finding> CheckSlurm(const CheckInputs& inputs);
// disk.cc
std::vector<Finding> CheckDisk(const CheckInputs& inputs);
// ranks.cc
std::vector<Finding> CheckRankPlaces(const CheckInputs& inputs, dist::RankContext& context);
std::vector<Finding> CheckAllReduce(const CheckInputs& inputs, dist::RankContext& context);

// A bounded test of the file system operations of a checkpoint.
struct DiskSpeed {
  uint64_t bytes = 0;
  double mb_per_s = 0;  // Write and fsync, in units of 10^6 bytes.
};
// Writes at most `max_bytes` for at most `max_seconds` (excluding the fsync of the last 16 MiB) to
// a new file in `folder`, renames it, fsyncs the folder, and deletes the file, even after a
// failure. Throws Error kEnvironment with the operation that failed.
DiskSpeed MeasureDisk(const std::filesystem::path& folder, uint64_t max_bytes, double max_seconds);

// Returns `path` or the nearest existing folder above it.
std::filesystem::path ExistingFolder(const std::filesystem::path& path);

// Return the version that the loaded library reports, for example "2.11.0", or "".
std::string LoadedTorch();
std::string LoadedProtobuf();

// Returns WARN if the loaded version differs from the build version. `maps` is the text of
// /proc/self/maps, which contains the path of the library's file. A library without a file is
// compiled in.
Finding JudgeLibrary(const LibraryVersion& library, const std::string& maps);

// Where a rank runs.
struct RankPlace {
  std::string host;
  std::vector<int> cpus;  // CPUs that the rank may use.
  int threads = 1;        // Number of compute threads.
  bool on_gpu = false;    // Computes on a GPU.
};
// A rank on a GPU needs this many cores: it has about eight threads that launch kernels, exchange
// data, read the dataset and write checkpoints.
constexpr size_t kCoresOfGpuRank = 6;
// Returns one finding per host: FAIL if its ranks compute on GPUs with fewer than kCoresOfGpuRank
// cores each, WARN if a rank, or all ranks together, have more threads than cores.
std::vector<Finding> JudgePlaces(const std::vector<RankPlace>& places);

// Returns FAIL if ranks compute on different kinds of device ("cuda" and "cpu"), which cannot sum
// with each other. Empty if all are equal.
std::vector<Finding> JudgeDevices(const std::vector<std::string>& of_ranks);

// Collective. Sums fp32 tensors of growing size, compares every element with the exact sum, and
// measures for about `seconds` in total. Returns one finding per size on rank 0, in GB/s of the
// tensor (bytes over time, independent of the algorithm's traffic), and an empty list on other
// ranks.
std::vector<Finding> TestAllReduce(dist::Communicator& comm, Device device, double seconds);

}  // namespace halflife::cli::doctor
