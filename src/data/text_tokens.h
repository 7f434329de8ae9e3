// Encodes plain text files in memory, as `eval --text` does. The result equals preparing the files
// with `--documents file` and reading the split.
//
//   const TextTokens text = EncodeFiles({"chapter.txt"}, *tokenizer);
//   const Batch batch = ReadWindows(ViewOf(text), seq_len, 0, 8);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "data/tokenizer.h"

namespace halflife::data {

struct TextTokens {
  std::vector<int32_t> ids;  // ids of all documents, concatenated, each with its eos
  SplitInfo info;
  int32_t eos_id = 0;
  NameCounts special_names = {};  // special token names in the text that were encoded as characters
};

// Each file is one document of UTF-8 text. A byte order mark is removed, files with names that end
// in .gz or .zst are decompressed, and empty files are skipped. Throws Error kData, naming the
// file, if a file is missing, not a regular file, .jsonl (whose records are documents) or not
// UTF-8, or if no file has text.
TextTokens EncodeFiles(const std::vector<std::string>& names, const Tokenizer& tokenizer);

// `text` is borrowed by the view.
TokenView ViewOf(const TextTokens& text, bool reset_at_documents = true);

}  // namespace halflife::data
