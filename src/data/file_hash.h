// Hashes of files that are too large to hold: one pass, 1 MiB at a time.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/hash.h"

namespace halflife::data {

struct FileHashes {
  Hash128 header;  // of the first header_bytes
  Hash128 whole;
};
// Reads `fd` from its beginning (pread; the offset stays). Errors are kData and name the path.
FileHashes HashFile(int fd, const std::filesystem::path& path, uint64_t header_bytes);
// Of the first `bytes` alone.
Hash128 HashFilePrefix(int fd, const std::filesystem::path& path, uint64_t bytes);

}  // namespace halflife::data
