// Converts text to a dataset: finds the files, trains or loads the tokenizer, splits the text into
// documents, tokenises on all cores, assigns splits, writes shards and publishes the folder. Memory
// does not grow with the input. The result depends only on the text and the options.
//
//   const PrepareSummary summary = Prepare({.input = {.paths = {"books/"}, .tokenizer = "bytes"},
//                                           .output = {.out = "books.data"}});
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/hash.h"
#include "data/dataset.h"
#include "data/prepare/prepare_options.h"
#include "data/prepare/text_chunker.h"
#include "data/shard_layout.h"

namespace halflife::data {

struct PrepareConfig {
  PrepareInput input;            // `tokenizer` is empty if one is trained
  bool train_tokenizer = false;  // trains sentencepiece on the training split
  int vocab_size = 0;            // number of pieces of the trained tokenizer
  // How .txt files are split into documents. If not set, each file is one document. Each record of
  // a .jsonl file is always a document.
  std::optional<DocumentMode> documents = std::nullopt;
  // Leaves out documents whose text (xxh3-128) occurred before. Needs about 48 bytes of memory for
  // each document, and holds whole documents in memory.
  bool dedup = false;
  // Only for token files (.bin): shards are links to the files, which are read once and not copied.
  bool in_place = false;
  // Only with in_place: maximum number of ids of a shard, a multiple of kBlockTokens. A file with
  // more ids becomes several shards.
  int64_t max_linked_tokens = kMaxShardTokens;
  // Keeps the encoded text in OUT.journal until the dataset is complete. A run with the same
  // options and files continues from it.
  bool resumable = false;
  int64_t chunk_bytes = 1 << 20;  // size of one unit of work
  PrepareOutput output;
};

struct PrepareSummary {
  SplitInfo train, validation;
  int vocab_size = 0;
  std::string tokenizer_kind;
  DocumentMode documents = DocumentMode::kFile;  // kRecord: the input has only records
  double validation_tail = 0;  // the share of each file for validation; 0: chosen in another way
  std::string first_file;      // file name without folder
  int64_t num_files = 0;
  int64_t num_skipped_files = 0;  // files of folders with another extension
  int64_t num_empty = 0;          // documents without text, which were skipped
  int64_t num_duplicates = 0;     // documents that dedup left out
  NameCounts special_names;       // special token names that were encoded as characters
  // The number of documents of input.validation_paths whose first 64 KiB also occur in input.paths.
  // A split by content leaves none. 0 with in_place, where they are not compared.
  int64_t num_validation_in_train = 0;
  double seconds = 0;
  Hash128 hash;  // hash of the manifest
};

PrepareSummary Prepare(const PrepareConfig& config);

}  // namespace halflife::data
