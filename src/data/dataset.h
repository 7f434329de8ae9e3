// A prepared dataset: one self-contained folder of immutable HDF5 token shards, a protobuf manifest
// and the tokenizer. It holds text, or rows of equal length with a label beside each token: those
// of a synthetic task, or of labelled text.
//   DATASET/manifest.pb  manifest.txtpb  tokenizer/...  train-00000.h5 ...  validation-00000.h5 ...
//
//   const Dataset dataset = Dataset::Open(path);
//   // Any range, across shards, without loading them whole.
//   dataset.Read(Split::kTrain, begin, ids);
//   if (dataset.info().has_rows()) dataset.ReadLabels(Split::kTrain, begin, labels);
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

enum class Split : uint8_t { kTrain, kValidation, kTest };  // text has no test split
constexpr Split kSplits[] = {Split::kTrain, Split::kValidation, Split::kTest};
const char* Name(Split split);           // "train", "validation", "test"
Split SplitOf(const std::string& name);  // Error kUsage for another name

// What stands beside the tokens of rows.
enum class RowLabels : uint8_t {
  kNone,     // text: its next tokens are the labels
  kTask,     // tokens that a synthetic task asks for
  kAnswers,  // next tokens, where these belong to the answer to a prompt
  kClasses,  // at a document's first token the number of the document's class
};
const char* Name(RowLabels labels);  // "none", "task", "answers", "classes"

// Rows of one kind that follow each other, such as those of one difficulty.
struct Segment {
  std::string name;  // "seq_len=128,num_kv_pairs=16"
  int64_t num_rows = 0;
  uint64_t seed = 0;
};

// The text of one input file: the tokens that follow those of the source before.
struct Source {
  std::string name;
  int64_t num_tokens = 0, num_documents = 0;
};

struct SplitInfo {
  int64_t num_tokens = 0;     // each document's eos included
  int64_t num_documents = 0;  // of rows that hold several, padding is one, too
  int64_t num_bytes = 0;      // of text
  int num_shards = 0;
  std::vector<Segment> segments = {};  // of labelled rows
  std::vector<Source> sources = {};    // of text from 2 to 100 files; their tokens are the split
};

// The mean number of tokens of a document, its eos included; 0 for an empty split.
double MeanDocumentTokens(const SplitInfo& split);

// A loss in bits of a byte of text, which models with different tokenizers share: what a target
// costs, times the targets that stand for a byte. Both counts are of the whole split, also where
// only some of its windows were scored, as a tokenizer that normalises cannot tell which bytes of
// the original text a token stands for. A document's eos is a target without a byte, its first
// token a byte without a target: with the `bytes` tokenizer they even out exactly. Without resets
// at documents, every token but the split's first is a target.
double BitsPerByte(double nats_per_target, const SplitInfo& split, bool reset_at_documents = true);

struct ShardInfo {
  std::string name;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // that start in it
  uint64_t num_bytes = 0;     // of the file
};

struct DatasetInfo {
  SplitInfo train, validation, test;
  int vocab_size = 0;
  int eos_id = 0;              // -1: rows of a task
  std::string tokenizer_kind;  // empty: rows of a task
  int64_t row_len = 0;         // tokens of a labelled row; 0: text
  std::string generator;       // of labelled rows: "mqar native 1: power 0.01, ..."
  RowLabels labels = RowLabels::kNone;
  std::vector<std::string> classes = {};  // names, of kClasses
  bool has_rows() const { return row_len > 0; }
  bool has_tokenizer() const { return !tokenizer_kind.empty(); }
  // Whether a row may hold several documents: one of a task, or of text that is one document, never
  // does.
  bool packs_documents() const {
    return labels != RowLabels::kTask && (train.num_documents > 1 || validation.num_documents > 1);
  }
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
  // of every block it reads, and that every id is below the vocabulary; up to 32 MiB of blocks a
  // column stay in memory, and are not read again. Thread-safe.
  void Read(Split split, int64_t begin, std::span<int32_t> ids) const;
  // The labels of the same tokens, verified likewise; kNoTarget where nothing is asked. Of labelled
  // rows alone.
  void ReadLabels(Split split, int64_t begin, std::span<int32_t> labels) const;
  // Starts of documents that lie in [begin, end), ascending.
  std::vector<int64_t> DocumentStarts(Split split, int64_t begin, int64_t end) const;

  // Error kUsage for rows of a task, which have none.
  std::unique_ptr<Tokenizer> LoadTokenizer() const;
  // Reads and checks every byte of every shard: Error kData for the first damage.
  void Verify() const;

 private:
  class Impl;
  explicit Dataset(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace halflife::data
