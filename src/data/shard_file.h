// One shard file looked at by itself, as `halflife inspect` does; reading tokens goes through
// Dataset, which verifies them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace halflife::data {

struct ShardFile {
  uint64_t bytes = 0;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // that start in it
  int token_bytes = 0;        // 2 or 4
  bool has_labels = false;    // of labelled rows, one a token
  // Of the manifest beside it, where there is one that names this file.
  std::string split;         // "train", "validation"; empty: no manifest
  std::string dataset_hash;  // hex
};
// Only the header is read. With a manifest beside the file its size and header are verified before
// HDF5 sees them. Error kData.
ShardFile ReadShardFile(const std::filesystem::path& path);

}  // namespace halflife::data
