// The tokenizer files of a Hugging Face folder: with them transformers' AutoTokenizer gives the ids of this program's
// tokenizer, and the other way round.
#pragma once

#include <filesystem>
#include <memory>

#include "data/tokenizer.h"

namespace halflife::interop {

// Into an existing folder. `bytes` alone has a form there; Error kUsage for others.
void WriteHfTokenizer(const data::Tokenizer& tokenizer, const std::filesystem::path& folder);

// Null: the folder has no tokenizer that this program reads.
std::unique_ptr<data::Tokenizer> LoadHfTokenizer(const std::filesystem::path& folder);

}  // namespace halflife::interop
