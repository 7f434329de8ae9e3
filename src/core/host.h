// This machine: its name, for messages and records, and its memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace halflife {

std::string HostName();  // "unknown" where the system does not tell

// Bytes that the processes of this machine may use together: memory and swap, or less where a
// cgroup limits this process. 0: the system does not tell. The folders are parameters for tests.
uint64_t HostMemoryBytes(const std::filesystem::path& proc = "/proc",
                         const std::filesystem::path& cgroups = "/sys/fs/cgroup");

}  // namespace halflife
