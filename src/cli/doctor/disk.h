// A bounded test of what a checkpoint does to a file system.
#pragma once

#include <cstdint>
#include <filesystem>

namespace halflife::cli::doctor {

struct DiskSpeed {
  uint64_t bytes = 0;
  double mb_per_s = 0;  // write and fsync, in units of 10^6 bytes
};
// Writes at most `max_bytes` for at most `max_seconds` (the fsync of the last 16 MiB comes on top)
// into a new file of `folder`, renames it, fsyncs the folder, and deletes the file, also after a
// failure. Error kEnvironment names the step that failed.
DiskSpeed MeasureDisk(const std::filesystem::path& folder, uint64_t max_bytes, double max_seconds);

// `path` or the nearest folder above it that exists.
std::filesystem::path ExistingFolder(const std::filesystem::path& path);

}  // namespace halflife::cli::doctor
