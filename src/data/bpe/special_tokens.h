// Which tokens begin, end and fill up text: what a Hugging Face folder says beside tokenizer.json.
#pragma once

#include <map>
#include <string>

#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer.h"

namespace halflife::data {

// The files that are looked at; any may be missing.
inline constexpr const char* kSpecialTokenFiles[] = {
    "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"};

// eos, by name in tokenizer_config.json or special_tokens_map.json, by id in generation_config.json
// or config.json, or as the end of tokenizer.json's template: the first that says. bos, pad and unk
// by name, where the name is a special added token. `files`: bytes by name. Error kData where
// nothing names an eos, or what it names is no token or could come out of text.
SpecialIds FindSpecialTokens(const BpeSpec& spec, const std::string& name,
                             const std::map<std::string, std::string>& files);

// tokenizer_config.json that says the same.
std::string TokenizerConfigJson(const BpeSpec& spec, const SpecialIds& ids);

}  // namespace halflife::data
