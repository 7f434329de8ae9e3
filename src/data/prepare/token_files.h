// Converts token files of other trainers to a dataset.
//
// | trainer | files | documents |
// |---|---|---|
// | nanoGPT | X.bin: ids of 16 bits (32 for vocabularies above 65,536) | end with eos |
// | llm.c | X.bin: the same behind a header of 1024 bytes | begin with eos |
// | Megatron-LM | X.bin and X.idx with lengths of sequences and documents | as in X.idx |
//
// All are little endian. In all of them, eos ends a document, and eos of empty documents is left
// out. The tokenizer must be the one that made the ids, because the files do not contain it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/prepare/prepare.h"

namespace halflife::data {

// True if all names end in .bin: they are token files.
bool AreTokenFiles(const std::vector<std::string>& names);

// Reads the ids of a token file, document by document.
class TokenFile {
 public:
  // Opens X.bin, and X.idx if it exists. Throws Error kData if the file is not of a known form.
  TokenFile(const std::filesystem::path& path, int vocab_size);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  // Reads the next ids into `ids`, at most `most`, and returns true if a document of the index, or
  // the file, ends behind them. Throws Error kData for an id that is not below the vocabulary size.
  bool Next(size_t most, std::vector<int32_t>& ids);
  bool at_end() const;
  uint64_t num_bytes() const;       // Size of X.bin.
  uint64_t num_bytes_read() const;  // So far.
  const char* format() const;       // "nanogpt", "llm.c" or "megatron"
  // If all ids are one piece of the file, returns its first byte; otherwise nothing. Megatron's
  // files have several pieces, even if they are adjacent.
  std::optional<uint64_t> only_piece() const;
  uint64_t id_bytes() const;  // Bytes of one id in the file.

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// `config.input` names token files. Options for text are not allowed. Documents are split by their
// content as in Prepare, or input.validation_paths are the validation split. With config.in_place,
// the shards are links to the files, and every eos ends a document, also an empty one.
PrepareSummary PrepareTokenFiles(const PrepareConfig& config);

}  // namespace halflife::data
