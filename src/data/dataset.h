// A prepared dataset: one self-contained folder of immutable HDF5 token shards, a protobuf manifest
// and the tokenizer. It holds text, or rows of equal length with a label for each token. Such rows
// come from a synthetic task or from labelled text.
//   DATASET/manifest.pb  manifest.txtpb  tokenizer/...  train-00000.h5  train-00000.index ...
//
//   const Dataset dataset = Dataset::Open(path);
//   // Reads any range, also across shards, without loading whole shards.
//   dataset.Read(Split::kTrain, begin, ids);
//   if (dataset.info().has_rows()) dataset.ReadLabels(Split::kTrain, begin, labels);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/hash.h"
#include "data/tokenizer.h"

namespace halflife::data {

enum class Split : uint8_t { kTrain, kValidation, kTest };  // text has no test split
constexpr Split kSplits[] = {Split::kTrain, Split::kValidation, Split::kTest};
const char* Name(Split split);           // "train", "validation", "test"
Split SplitOf(const std::string& name);  // throws Error kUsage for another name

// The kind of labels of a dataset's rows.
enum class RowLabels : uint8_t {
  kNone,     // text, whose labels are its next tokens
  kTask,     // the answers of a synthetic task
  kAnswers,  // the next token, if it belongs to the answer to a prompt
  kClasses,  // the number of the document's class, at the document's first token
  // As kAnswers. Documents of a row are pairs: the preferred answer, then the rejected one.
  kPreferences,
};
const char* Name(RowLabels labels);  // "none", "task", "answers", "classes", "preferences"

// Consecutive rows of one kind, for example of one difficulty.
struct Segment {
  std::string name;  // "seq_len=128,num_kv_pairs=16"
  int64_t num_rows = 0;
  uint64_t seed = 0;
};

// The text of one input file. Its tokens directly follow those of the previous source.
struct Source {
  std::string name;
  int64_t num_tokens = 0, num_documents = 0;
};

struct SplitInfo {
  int64_t num_tokens = 0;     // includes the eos of each document
  int64_t num_documents = 0;  // in rows of several documents, padding counts as one
  int64_t num_bytes = 0;      // bytes of text
  int num_shards = 0;
  std::vector<Segment> segments = {};  // only for labelled rows
  // Only for text from 2 to 100 files; together they contain all tokens of the split.
  std::vector<Source> sources = {};
};

// Returns the mean number of tokens per document, including its eos; 0 for an empty split.
double MeanDocumentTokens(const SplitInfo& split);

// Converts a loss to bits per byte of text, which is comparable between models with different
// tokenizers: the loss per target, times the number of targets per byte. Both counts are those of
// the whole split, even if only some windows were scored, because with a tokenizer that normalizes,
// the bytes of the original text that a token represents are unknown. The eos of a document is a
// target without a byte, and its first token is a byte without a target; with the `bytes` tokenizer
// the two cancel exactly. Without resets at documents, every token except the first of the split is
// a target.
double BitsPerByte(double nats_per_target, const SplitInfo& split, bool reset_at_documents = true);

struct ShardInfo {
  std::string name;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // that start in the shard
  uint64_t num_bytes = 0;     // size of the file
};

struct DatasetInfo {
  SplitInfo train, validation, test;
  int vocab_size = 0;
  int eos_id = 0;              // -1 for rows of a task
  std::string tokenizer_kind;  // empty for rows of a task
  int64_t row_len = 0;         // tokens per labelled row; 0 for text
  std::string generator;       // how labelled rows were made: "mqar native 1: power 0.01, ..."
  RowLabels labels = RowLabels::kNone;
  std::vector<std::string> classes = {};  // class names; only with kClasses
  bool has_rows() const { return row_len > 0; }
  bool has_tokenizer() const { return !tokenizer_kind.empty(); }
  // Returns true if a row may contain several documents. A row of a task, or of text that is one
  // document, never does.
  bool packs_documents() const {
    return labels != RowLabels::kTask && (train.num_documents > 1 || validation.num_documents > 1);
  }
  Hash128 hash;  // hash of the manifest, which checkpoints record
};

class Dataset {
 public:
  // Checks the manifest's framing and hash. Of a dataset with at most 16 shards, also checks their
  // presence, size and header; a larger one is not read before its tokens are. Throws Error kData
  // that names the file, the problem and a fix. `num_datasets` is the number of datasets that are
  // open at the same time: they share the process's descriptors and memory for indexes.
  static Dataset Open(const std::filesystem::path& folder, size_t num_datasets = 1);
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;
  ~Dataset();

  const DatasetInfo& info() const;
  const std::filesystem::path& folder() const;
  const SplitInfo& split(Split split) const;
  std::vector<ShardInfo> Shards(Split split) const;

  // Reads tokens [begin, begin + ids.size()) of the split's concatenated documents. Verifies the
  // checksum of every block that it reads from disk, and that every id is below the vocabulary
  // size. Up to 32 MiB of blocks per column stay in memory and are not read again. Thread-safe.
  void Read(Split split, int64_t begin, std::span<int32_t> ids) const;
  // Reads the labels of the same tokens, with the same checks; kNoTarget marks a token without a
  // label. Only for labelled rows.
  void ReadLabels(Split split, int64_t begin, std::span<int32_t> labels) const;
  // Returns the document starts in [begin, end), in ascending order.
  std::vector<int64_t> DocumentStarts(Split split, int64_t begin, int64_t end) const;

  // Throws Error kUsage for rows of a task, which have no tokenizer.
  std::unique_ptr<Tokenizer> LoadTokenizer() const;
  // Reads and checks every byte of every shard. Throws Error kData for the first damage.
  void Verify() const;

 private:
  class Impl;
  explicit Dataset(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// An id that means different text to a model and to the text that it reads. Vocabularies of equal
// size may differ.
struct TokenDifference {
  int32_t id = 0;
  std::string left, right;  // the text that the id represents in each tokenizer
};
// Returns the first id that is in both vocabularies and represents different text in the two.
std::optional<TokenDifference> FindDifference(const Tokenizer& left, const Tokenizer& right);

// Throws Error kUsage if an id of the dataset represents different text, or none, in `own`, the
// model's tokenizer. `where` describes the owner of the model's tokenizer for the error message.
void RequireSameTokens(const Dataset& dataset, const Tokenizer& own, const std::string& where);

}  // namespace halflife::data
