// Splits a chunk of text into documents and encodes them as token ids. This is the part of
// `prepare` that runs in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/hash.h"
#include "data/dataset.h"
#include "data/prepare/text_chunker.h"
#include "data/tokenizer.h"

namespace halflife::data {

struct DocumentRules {
  std::string field = "text";  // the field of a JSON record that holds the text
  bool replace_invalid_utf8 = false;
  int64_t max_document_bytes = int64_t{256} << 20;
  bool allow_pieces = false;  // if true, max_document_bytes applies only to JSON records
  double validation_fraction = 0.05;
  uint64_t split_seed = 0;
  std::optional<Split> split = std::nullopt;  // if set, the split of all documents
  bool hash_whole = false;                    // sets EncodedDocument::whole

  // Returns the rules for a chunk. If the chunk has a split, it applies to all its documents.
  DocumentRules Of(const TextChunk& chunk) const;
};

// A document, or the part of it that is in a chunk.
struct Document {
  std::string_view text;
  bool begins = true;
  bool ends = true;
};

// Calls `visit` for each document of the chunk, in order. Skips empty documents and returns their
// number. Throws Error kData, with file and position, for invalid UTF-8, malformed JSON, or a
// missing field or one of the wrong type.
int64_t ForEachDocument(TextChunk chunk, const DocumentRules& rules,
                        const std::function<void(const Document&)>& visit);

// Returns the hash of the first 64 KiB of the document.
Hash128 ContentHash(std::string_view text);

// Chooses the split from the content and the seed, unless the rules set the split. The choice does
// not depend on order, file names or threads, and is equal for two copies of a text.
Split ChooseSplit(Hash128 content, const DocumentRules& rules);

struct EncodedDocument {
  // Valid if the document begins here; its later pieces follow the first piece.
  Split split = Split::kTrain;
  Hash128 content;     // its ContentHash, if the document begins here
  Hash128 whole = {};  // the hash of all its text, with rules.hash_whole
  bool begins = true;
  int64_t num_ids = 0;    // includes bos if the document begins with it, and eos if it ends here
  int64_t num_bytes = 0;  // bytes of text
};

struct EncodedChunk {
  const InputFile* file = nullptr;  // the file of the chunk
  std::vector<int32_t> ids;         // ids of all documents, concatenated
  std::vector<EncodedDocument> documents;
  NameCounts special_names;  // special token names in the text that were encoded as characters
  int64_t num_empty = 0;
  uint64_t disk_bytes = 0;  // bytes read so far, for progress reports
};

class DocumentEncoder {
 public:
  // `tokenizer` is borrowed and must outlive the encoder. `rules` are copied.
  DocumentEncoder(const Tokenizer& tokenizer, const DocumentRules& rules)
      : tokenizer_(tokenizer), rules_(rules) {}
  EncodedChunk Encode(TextChunk chunk) const;  // thread-safe

 private:
  const Tokenizer& tokenizer_;
  const DocumentRules rules_;
};

// Counts texts that are both held out and trained on, by their content, because a score on them
// does not measure generalization. Add all held-out texts first.
class HeldOutContents {
 public:
  void Add(Split split, Hash128 content) {
    if (split != Split::kTrain) {
      ++count_[content.lo];
    } else if (const auto found = count_.find(content.lo); found != count_.end()) {
      num_in_train_ += found->second;
      count_.erase(found);
    }
  }
  // Returns the number of held-out texts that also occur in the training split. Each is counted
  // once.
  int64_t num_in_train() const { return num_in_train_; }

 private:
  // held-out texts that training has not repeated so far.
  std::unordered_map<uint64_t, int64_t> count_;
  int64_t num_in_train_ = 0;
};

}  // namespace halflife::data
