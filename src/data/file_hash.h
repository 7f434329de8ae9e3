// Hashes files that are too large for memory, in one pass and 1 MiB at a time.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/hash.h"

namespace halflife::data {

struct FileHashes {
  Hash128 header;  // hash of the first header_bytes bytes
  Hash128 whole;
};
// Reads `fd` from its beginning with pread, so the file offset does not change. Errors are kData
// and name the path.
FileHashes HashFile(int fd, const std::filesystem::path& path, uint64_t header_bytes);
// The hash of only the first `bytes` bytes.
Hash128 HashFilePrefix(int fd, const std::filesystem::path& path, uint64_t bytes);

}  // namespace halflife::data
