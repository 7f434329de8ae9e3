// A bounded test of the file system operations of a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>

namespace halflife::cli::doctor {

struct DiskSpeed {
  uint64_t bytes = 0;
  double mb_per_s = 0;  // Write and fsync, in units of 10^6 bytes.
};
// Writes at most `max_bytes` for at most `max_seconds` (excluding the fsync of the last 16 MiB) to
// a new file in `folder`, renames it, fsyncs the folder, and deletes the file, even after a
// failure. Error kEnvironment names the step that failed.
DiskSpeed MeasureDisk(const std::filesystem::path& folder, uint64_t max_bytes, double max_seconds);

// Returns `path` or the nearest existing folder above it.
std::filesystem::path ExistingFolder(const std::filesystem::path& path);

}  // namespace halflife::cli::doctor
