// The tokenizer files of a Hugging Face folder: with them transformers' AutoTokenizer gives the ids
// of this program's tokenizer, and the other way round.
//
//   WriteHfTokenizer(*tokenizer, hf_folder);
//   const auto same = LoadHfTokenizer(hf_folder);   // special_ids() has bos, eos and pad
//
// | tokenizer | files |
// |---|---|
// | bytes | tokenizer_config.json that names ByT5Tokenizer without sentinels |
// | sentencepiece | tokenizer.json of the model, tokenizer.model itself, tokenizer_config.json |
// | bpe | tokenizer.json as it came, tokenizer_config.json |
//
// The tokenizer's chat templates are written, too (data/chat_templates.h). transformers reads the
// name of a special token in a text, such as "</s>", as that token: so does SpecialTokens::kParse,
// except that `bytes` has no named special tokens.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace halflife::interop {

// Bytes by file name. Error kData where a sentencepiece model has no exact form as tokenizer.json.
std::map<std::string, std::string> HfTokenizerFiles(const data::Tokenizer& tokenizer);

// Writes them and the chat templates into an existing folder.
void WriteHfTokenizer(const data::Tokenizer& tokenizer, const std::filesystem::path& folder);

// Reads those, and what others wrote: see data::FindTokenizer. Null: the folder has no tokenizer.
std::unique_ptr<data::Tokenizer> LoadHfTokenizer(const std::filesystem::path& folder);

}  // namespace halflife::interop
