// This machine: its name (for messages and records), memory and cores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace halflife {

std::string HostName();  // "unknown" if the system does not provide it

// The number of cores that this process may use, at least 1. A batch system may allow fewer than
// the machine has.
int NumUsableCores();
// Upper bound of thread counts that a user can request.
constexpr int kMaxThreads = 1024;

// The bytes that the processes of this machine may use together: memory plus swap, or the smaller
// limit of this process's cgroup. Returns 0 if the system does not provide the numbers. The folders
// are parameters for tests.
uint64_t HostMemoryBytes(const std::filesystem::path& proc = "/proc",
                         const std::filesystem::path& cgroups = "/sys/fs/cgroup");

}  // namespace halflife
