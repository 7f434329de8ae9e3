// What the system's own files say: the text in, plain values out. Nothing here touches the machine;
// the checks read the files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halflife::cli::doctor {

// Soft limits of /proc/self/limits. "Max locked memory" -> 8388608; kUnlimited; nullopt: no such
// row.
constexpr uint64_t kUnlimited = UINT64_MAX;
std::optional<uint64_t> ParseLimit(std::string_view limits, std::string_view row);

// The value behind "key:" of /proc/self/status or /proc/cpuinfo, its first occurrence; "" where
// there is none.
std::string ParseField(std::string_view text, std::string_view key);

// "0-3,8,10-11" -> {0, 1, 2, 3, 8, 10, 11}; what cannot be read is left out.
std::vector<int> ParseCpuList(std::string_view list);

// cgroup v2 cpu.max: "200000 100000" -> 2.0 cores; "max 100000" -> nullopt.
std::optional<double> ParseCpuMax(std::string_view cpu_max);
// The path behind "0::" (v2) or behind the controller (v1) in /proc/self/cgroup.
std::string ParseCgroupPath(std::string_view cgroup, std::string_view controller);

// The file system of the deepest mount above `path` (absolute) in /proc/self/mountinfo.
struct Mount {
  std::string point, type, options;  // options: of mount and super block, joined by a comma
};
std::optional<Mount> FindMount(std::string_view mountinfo, const std::string& path);

// The mapped file of /proc/PID/maps whose name begins with `prefix`; "" where there is none.
std::string FindMapped(std::string_view maps, std::string_view prefix);

// "[host:123] MCW rank 0 bound to socket 0[core 0[hwt 0]]: [B/.]" -> "socket 0[core 0[hwt 0]]"; for
// rank 0 of `mpirun --report-bindings`; "" where mpirun says that it is not bound, nullopt where it
// says nothing.
std::optional<std::string> ParseBinding(std::string_view report);

// The first dotted number, e.g. of "mpirun (Open MPI) 4.1.4"; "" where there is none.
std::string ParseVersion(std::string_view text);

// Whether a build for these architectures ("80-real,90a-real") has code for a GPU: binaries of
// x.y run on x.z with z >= y, those of "a" on their own kind alone, "-virtual" on all later ones.
bool CoversGpu(std::string_view architectures, int major, int minor);
// What CMAKE_CUDA_ARCHITECTURES is to be for such a GPU alone: 9.0 is built as "90a", whose
// instructions of warpgroups "90" does not have.
std::string ArchitectureFor(int major, int minor);

}  // namespace halflife::cli::doctor
