// Text to dataset: find the files, train or load the tokenizer, cut into documents, tokenise on all
// cores, split, write shards, publish. Memory does not grow with the input, and the result is a
// function of the text and the options alone.
//
//   const PrepareSummary summary = Prepare({.input = {.paths = {"books/"}, .tokenizer = "bytes"},
//                                           .output = {.out = "books.data"}});
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/hash.h"
#include "data/dataset.h"
#include "data/prepare_input.h"
#include "data/prepare_output.h"
#include "data/text_chunker.h"

namespace halflife::data {

struct PrepareConfig {
  PrepareInput input;            // without a tokenizer where one is trained
  bool train_tokenizer = false;  // sentencepiece, on the training split
  int vocab_size = 0;            // of the trained tokenizer
  // How .txt files are cut; not set: each is one document. A record of .jsonl is always a document.
  std::optional<DocumentMode> documents = std::nullopt;
  int64_t chunk_bytes = 1 << 20;  // of one unit of work
  PrepareOutput output;
};

struct PrepareSummary {
  SplitInfo train, validation;
  int vocab_size = 0;
  std::string tokenizer_kind;
  DocumentMode documents = DocumentMode::kFile;  // kRecord: there are only records
  double validation_tail = 0;  // the share of each file that validates; 0: the split is another
  std::string first_file;      // name, without its folder
  int64_t num_files = 0;
  int64_t num_skipped_files = 0;  // of folders, with another extension
  int64_t num_empty = 0;          // documents without text, left out
  NameCounts special_names;       // names of special tokens that were read as characters
  // Documents of input.validation_paths that input.paths hold as well (by their first 64 KiB).
  // Splitting by content leaves none.
  int64_t num_validation_in_train = 0;
  double seconds = 0;
  Hash128 hash;  // of the manifest
};

PrepareSummary Prepare(const PrepareConfig& config);

}  // namespace halflife::data
