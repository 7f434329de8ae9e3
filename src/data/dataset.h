// A prepared dataset: one self-contained folder of immutable HDF5 token shards, a protobuf manifest
// and the tokenizer.
//   DATASET/manifest.pb  manifest.txtpb  tokenizer/...  train-00000.h5 ...  validation-00000.h5 ...
//
//   const Dataset dataset = Dataset::Open(path);
//   // Any range, across shards, without loading them whole.
//   dataset.Read(Split::kTrain, begin, ids);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/hash.h"
#include "data/tokenizer.h"

namespace halflife::data {

enum class Split : uint8_t { kTrain, kValidation };
const char* Name(Split split);  // "train", "validation"

struct SplitInfo {
  int64_t num_tokens = 0;  // each document's eos included
  int64_t num_documents = 0;
  int64_t num_bytes = 0;  // of text
  int num_shards = 0;
};

// A loss in bits of a byte of text, which models with different tokenizers share: what a target
// costs, times the targets that stand for a byte. Both counts are of the whole split, also where
// only some of its windows were scored, as a tokenizer that normalises cannot tell which bytes of
// the original text a token stands for. A document's eos is a target without a byte, its first
// token a byte without a target: with the `bytes` tokenizer they even out exactly.
double BitsPerByte(double nats_per_target, const SplitInfo& split);

struct ShardInfo {
  std::string name;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // that start in it
  uint64_t num_bytes = 0;     // of the file
};

struct DatasetInfo {
  SplitInfo train, validation;
  int vocab_size = 0;
  int eos_id = 0;
  std::string tokenizer_kind;
  Hash128 hash;  // of the manifest: what a checkpoint records
};

class Dataset {
 public:
  // Checks the manifest's framing and hash, and each shard's presence, size and header. Error kData
  // names the file, what was met and what would work.
  static Dataset Open(const std::filesystem::path& folder);
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;
  ~Dataset();

  const DatasetInfo& info() const;
  const std::filesystem::path& folder() const;
  const SplitInfo& split(Split split) const;
  std::vector<ShardInfo> Shards(Split split) const;

  // Tokens [begin, begin + ids.size()) of the split's concatenated documents. Verifies the checksum
  // of every block it touches, and that every id is below the vocabulary. Thread-safe.
  void Read(Split split, int64_t begin, std::span<int32_t> ids) const;
  // Starts of documents that lie in [begin, end), ascending.
  std::vector<int64_t> DocumentStarts(Split split, int64_t begin, int64_t end) const;

  std::unique_ptr<Tokenizer> LoadTokenizer() const;
  // Reads and checks every byte of every shard: Error kData for the first damage.
  void Verify() const;

 private:
  class Impl;
  explicit Dataset(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace halflife::data
