// Text to dataset: find the files, train or load the tokenizer, cut into documents, tokenise on all
// cores, split, write shards, publish. Memory does not grow with the input, and the result is a
// function of the text and the options alone.
//
//   const PrepareSummary summary =
//       Prepare({.inputs = {"books/"}, .tokenizer = "bytes", .out = "books.data"});
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/hash.h"
#include "data/dataset.h"
#include "data/text_chunker.h"

namespace halflife::data {

struct PrepareProgress {
  const char* phase = "";  // "training the tokenizer" | "tokenising"
  int64_t num_documents = 0;
  int64_t text_bytes = 0;
  uint64_t disk_bytes = 0;  // of the input read so far, compressed where the file is
  uint64_t total_disk_bytes = 0;
};

struct PrepareConfig {
  std::vector<std::string> inputs;
  // Text of the validation split. Where there is any, all of `inputs` trains, and
  // validation_fraction and split_seed choose nothing.
  std::vector<std::string> validation_inputs = {};
  std::string tokenizer;         // as OpenTokenizer takes it; empty with train_tokenizer
  bool train_tokenizer = false;  // sentencepiece, on the training split
  int vocab_size = 0;            // of the trained tokenizer
  std::filesystem::path out;
  std::string field = "text";
  DocumentMode documents = DocumentMode::kAuto;
  double validation_fraction = 0.05;
  uint64_t split_seed = 0;
  int threads = 0;  // 0: all cores
  int64_t shard_tokens = int64_t{1} << 26;
  bool replace_invalid_utf8 = false;
  int64_t max_document_bytes = 16 << 20;  // of a document that must be held whole
  int64_t chunk_bytes = 1 << 20;          // of one unit of work
  std::function<void(const PrepareProgress&)> on_progress = nullptr;  // after each chunk
  const std::atomic<bool>* stop = nullptr;  // set: give up soon, leave nothing; Error kInterrupted
};

struct PrepareSummary {
  SplitInfo train, validation;
  int vocab_size = 0;
  std::string tokenizer_kind;
  int64_t num_files = 0;
  int64_t num_skipped_files = 0;  // of folders, with another extension
  int64_t num_empty = 0;          // documents without text, left out
  // Documents of validation_inputs that `inputs` hold as well (by their first 64 KiB). Splitting by
  // content leaves none.
  int64_t num_validation_in_train = 0;
  double seconds = 0;
  Hash128 hash;  // of the manifest
};

PrepareSummary Prepare(const PrepareConfig& config);

}  // namespace halflife::data
