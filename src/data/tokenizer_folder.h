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

// The tokenizer of a folder: a dataset's or a run's (kind.txt), or a Hugging Face model's: ByT5's
// tokenizer_config.json, byte-level BPE in tokenizer.json, or else a sentencepiece tokenizer.model.
// Null where none of these files is there; error kData where one is there that cannot be read.
std::unique_ptr<Tokenizer> FindTokenizer(const std::filesystem::path& folder);

}  // namespace halflife::data
