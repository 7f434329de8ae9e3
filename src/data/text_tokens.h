// Plain text as the tokens of a split, in memory: what `eval --text` reads. The same as preparing
// the files with `--documents file` and reading the split.
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
  std::vector<int32_t> ids;  // of all documents, one after the other, each with its eos
  SplitInfo info;
  int32_t eos_id = 0;
  NameCounts special_names = {};  // names of special tokens, which are read as characters
};

// Each file is one document: UTF-8, without its byte order mark, unpacked where its name ends in
// .gz or .zst; an empty one is left out. Error kData names the file: missing, no regular file,
// .jsonl (whose records are documents), not UTF-8, or no text in any.
TextTokens EncodeFiles(const std::vector<std::string>& names, const Tokenizer& tokenizer);

// `text` is borrowed.
TokenView ViewOf(const TextTokens& text, bool reset_at_documents = true);

}  // namespace halflife::data
