// Finds out what a tokenizer on disk is, and loads it.
//
//   const auto tokenizer = OpenTokenizer("Qwen2-0.5B/");   // what `prepare --tokenizer` takes
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace halflife::data {

// `bytes`; a sentencepiece .model file; a tokenizer.json with its neighbours; or a folder as below.
// Error kData says what was met, and what would work.
std::unique_ptr<Tokenizer> OpenTokenizer(const std::string& name);

// The tokenizer of a folder: a dataset's or a run's (kind.txt), or a Hugging Face model's:
// byte-level BPE in tokenizer.json, a sentencepiece tokenizer.model, or ByT5's
// tokenizer_config.json, the first that is there. Null where none is; error kData where one is
// there that cannot be read, or only the vocabulary of a kind that is not read.
std::unique_ptr<Tokenizer> FindTokenizer(const std::filesystem::path& folder);

}  // namespace halflife::data
