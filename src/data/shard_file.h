// Describes a single shard file for `halflife inspect`, and hashes shard files. To read tokens, use
// Dataset, which verifies them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/hash.h"

namespace halflife::data {

struct ShardFile {
  uint64_t bytes = 0;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // that start in the shard
  int token_bytes = 0;        // 2 or 4
  bool has_labels = false;    // one label per token, for labelled rows
  // Set only if the folder has a manifest that lists this file.
  std::string split;         // "train" or "validation"; empty without a manifest
  std::string dataset_hash;  // hex
};
// Reads only the header. If the folder has a manifest, size and header are verified before HDF5
// opens the file. Throws Error kData on failure.
ShardFile ReadShardFile(const std::filesystem::path& path);

// Hashes files that are too large for memory, in one pass and 1 MiB at a time.
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
