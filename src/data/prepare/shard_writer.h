// Writes the documents of one split, with or without labels, into numbered HDF5 shards of at most
// `shard_tokens` tokens each. A document may continue in the next shard. Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/manifest.h"

namespace halflife::data {

// Counts the sources of a split while its tokens are written file by file. Each source is then a
// contiguous range of the split's tokens.
class SourceList {
 public:
  // Later calls of Count refer to the file with this name. In the name, a byte that is not UTF-8
  // becomes U+FFFD. A name that is already used gets a number: "web.txt (2)".
  void Begin(std::string_view name);
  // Has no effect before the first Begin.
  void Count(int64_t num_tokens, int64_t num_documents);
  // Returns the sources that have tokens, in order. Returns an empty list if there are fewer than
  // two or more than 100: a single source is the whole split, and a longer list is not useful in a
  // report.
  std::vector<Source> Take();

 private:
  std::vector<Source> sources_;
};

struct ShardWriterConfig {
  std::filesystem::path folder;
  Split split = Split::kTrain;
  int token_bytes = 2;
  int64_t shard_tokens = int64_t{1} << 26;  // 128 MiB of 16-bit tokens
  bool labels = false;                      // one label per token
};

class ShardWriter {
 public:
  explicit ShardWriter(const ShardWriterConfig& config);
  ~ShardWriter();

  // All following documents come from the file with this name. Not allowed with config.labels.
  void BeginSource(std::string_view name) { sources_.Begin(name); }
  void BeginDocument();
  void Append(std::span<const int32_t> ids);
  // Replaces BeginDocument and Append if config.labels is set. Appends one whole document, which is
  // a row or part of a row. There must be as many labels as ids.
  void AppendLabelled(std::span<const int32_t> ids, std::span<const int32_t> labels);
  // Adds to the number of text bytes, which the manifest records.
  void CountBytes(int64_t bytes) { record_.info.num_bytes += bytes; }
  SplitRecord Finish();

 private:
  class File;
  void AppendPieces(std::span<const int32_t> ids, std::span<const int32_t> labels);
  void OpenShardIfNone();
  void CloseShard();

  const ShardWriterConfig config_;
  SplitRecord record_;
  SourceList sources_;
  std::unique_ptr<File> file_;  // null between shards
};

}  // namespace halflife::data
