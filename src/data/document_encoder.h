// From a chunk of text to documents, and from documents to token ids: the part of `prepare` that
// runs in parallel.
//
//   const DocumentEncoder encoder(*tokenizer, {.validation_fraction = 0.05});
//   const EncodedChunk encoded = encoder.Encode(chunk);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/hash.h"
#include "data/dataset.h"
#include "data/text_chunker.h"
#include "data/tokenizer.h"

namespace halflife::data {

struct DocumentRules {
  std::string field = "text";  // of a JSON record
  bool replace_invalid_utf8 = false;
  int64_t max_document_bytes = int64_t{256} << 20;
  bool allow_pieces = false;  // then the limit holds for JSON records alone
  double validation_fraction = 0.05;
  uint64_t split_seed = 0;
  std::optional<Split> split = std::nullopt;  // of all documents, whatever they say

  // The rules of a chunk: a chunk that names a split names it for all its documents.
  DocumentRules Of(const TextChunk& chunk) const;
};

// A document, or the piece of one that lies in a chunk.
struct Document {
  std::string_view text;
  bool begins = true;
  bool ends = true;
};

// Calls `visit` for each document of the chunk, in order. Empty documents are left out; returns how
// many. Error kData with file and position: invalid UTF-8, malformed JSON, a missing or wrong
// field.
int64_t ForEachDocument(TextChunk chunk, const DocumentRules& rules,
                        const std::function<void(const Document&)>& visit);

// Of the document's first 64 KiB.
Hash128 ContentHash(std::string_view text);

// By the content and the seed alone, unless the rules name the split: independent of order, file
// names and threads, and the same for two copies of a text.
Split ChooseSplit(Hash128 content, const DocumentRules& rules);

struct EncodedDocument {
  Split split = Split::kTrain;  // where it begins; the later pieces of a document follow the first
  Hash128 content;              // ContentHash, where it begins
  bool begins = true;
  int64_t num_ids = 0;    // eos included where the document ends
  int64_t num_bytes = 0;  // of text
};

struct EncodedChunk {
  const InputFile* file = nullptr;  // that the chunk is from
  std::vector<int32_t> ids;         // of all documents, one after the other
  std::vector<EncodedDocument> documents;
  NameCounts special_names;  // names of special tokens, which are read as characters
  int64_t num_empty = 0;
  uint64_t disk_bytes = 0;  // read so far: progress
};

class DocumentEncoder {
 public:
  // `tokenizer` is borrowed for the encoder's life, `rules` are copied.
  DocumentEncoder(const Tokenizer& tokenizer, const DocumentRules& rules)
      : tokenizer_(tokenizer), rules_(rules) {}
  EncodedChunk Encode(TextChunk chunk) const;  // thread-safe

 private:
  const Tokenizer& tokenizer_;
  const DocumentRules rules_;
};

}  // namespace halflife::data
