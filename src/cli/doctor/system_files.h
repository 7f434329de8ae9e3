// Parsers of system files and of the output of tools, from text to plain values. The parsers do not
// access the machine: the checks read the files. RunTool() runs the tools.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::cli::doctor {

// Soft limits of /proc/self/limits: "Max locked memory" -> 8388608 or kUnlimited. nullopt if there
// is no such row.
constexpr uint64_t kUnlimited = UINT64_MAX;
std::optional<uint64_t> ParseLimit(std::string_view limits, std::string_view row);

// Returns the value after the first "key:" of /proc/self/status or /proc/cpuinfo, or "".
std::string ParseField(std::string_view text, std::string_view key);

// Parses a list of CPUs: "0-3,8,10-11" -> {0, 1, 2, 3, 8, 10, 11}. Invalid parts are skipped.
std::vector<int> ParseCpuList(std::string_view list);

// cgroup v2 cpu.max: "200000 100000" -> 2.0 cores; "max 100000" -> nullopt.
std::optional<double> ParseCpuMax(std::string_view cpu_max);
// Returns the path after "0::" (v2) or after the controller (v1) in /proc/self/cgroup.
std::string ParseCgroupPath(std::string_view cgroup, std::string_view controller);

// The file system of the deepest mount above `path` (absolute) in /proc/self/mountinfo.
struct Mount {
  // `options` are those of the mount and of the super block, joined by a comma.
  std::string point, type, options;
};
std::optional<Mount> FindMount(std::string_view mountinfo, const std::string& path);

// Returns the mapped file of /proc/PID/maps whose name begins with `prefix`, or "".
std::string FindMapped(std::string_view maps, std::string_view prefix);

// Parses rank 0's line of `mpirun --report-bindings`: "[host:123] MCW rank 0 bound to socket 0[core
// 0[hwt 0]]: [B/.]" -> "socket 0[core 0[hwt 0]]". Returns "" if mpirun reports that it is not
// bound, and nullopt if there is no such line.
std::optional<std::string> ParseBinding(std::string_view report);

// Returns the first dotted number, for example of "mpirun (Open MPI) 4.1.4", or "".
std::string ParseVersion(std::string_view text);

// Returns whether a build for these architectures ("80-real,90a-real") has code for a GPU. Binaries
// of x.y run on x.z with z >= y, binaries of "x.ya" only on x.y, and "-virtual" code on all later
// GPUs. Which GPUs CMake's words "native", "all" and "all-major" mean is not known: they cover all.
bool CoversGpu(std::string_view architectures, int major, int minor);
// Returns the CMAKE_CUDA_ARCHITECTURES for only this GPU. 9.0 is built as "90a", because "90" does
// not have the warpgroup instructions.
std::string ArchitectureFor(int major, int minor);

// Why a GPU cannot run this build's kernels, and what to do about it.
struct GpuProblem {
  std::string text, remedy;
};
// Returns nothing if a build for these architectures runs on the GPU.
std::optional<GpuProblem> FindGpuProblem(std::string_view architectures, int major, int minor);

// Returns the path of this program in $PATH. Empty: not found.
std::filesystem::path FindProgram(const std::string& name);

struct CommandOutput {
  int exit_code = 0;  // 124: the tool took longer than 15 s and was stopped.
  std::string text;   // stdout and stderr.
};
// Runs a small tool that checks need: mpirun, srun or nvidia-smi. `command_line` is passed to the
// shell. It must be a constant that contains no text from users or files.
CommandOutput RunTool(const char* command_line);

}  // namespace halflife::cli::doctor
