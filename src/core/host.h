// This machine: its name, for messages and records, its memory and its cores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace halflife {

std::string HostName();  // "unknown" where the system does not tell

// The cores that this process may use, which a batch system may have cut below the machine's; at
// least 1.
int NumUsableCores();
// The most threads that a user may ask for.
constexpr int kMaxThreads = 1024;

// Bytes that the processes of this machine may use together: memory and swap, or less where a
// cgroup limits this process. 0: the system does not tell. The folders are parameters for tests.
uint64_t HostMemoryBytes(const std::filesystem::path& proc = "/proc",
                         const std::filesystem::path& cgroups = "/sys/fs/cgroup");

}  // namespace halflife
