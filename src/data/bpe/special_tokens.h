// Finds the bos, eos, pad and unk tokens in the files that accompany tokenizer.json in a Hugging
// Face folder.
#pragma once

#include <map>
#include <string>

#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer.h"

namespace halflife::data {

// The files that are searched; each may be missing.
inline constexpr const char* kSpecialTokenFiles[] = {
    "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"};

// Finds the special tokens. `files` maps file names to contents.
//
// - eos: the first that is given of a name in tokenizer_config.json or special_tokens_map.json, an
//   id in generation_config.json or config.json, and the end of tokenizer.json's template.
// - bos, pad and unk: by name, if the name is a special added token.
//
// Throws Error kData if no file names an eos, or if the eos is not a token or can result from plain
// text.
SpecialIds FindSpecialTokens(const BpeSpec& spec, const std::string& name,
                             const std::map<std::string, std::string>& files);

// A tokenizer_config.json with the same information.
std::string TokenizerConfigJson(const BpeSpec& spec, const SpecialIds& ids);

}  // namespace halflife::data
