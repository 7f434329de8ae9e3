// The options of commands that convert text to tokens.
#pragma once

#include <string>

#include "data/tokenizer.h"

namespace CLI {
class App;
}

namespace halflife::cli {

// The help of --tokenizer, for data::OpenTokenizer.
inline constexpr char kTokenizerHelp[] =
    "`bytes`, a sentencepiece .model file, a byte-level BPE tokenizer.json, or a folder with a "
    "tokenizer, such as a Hugging Face model's";

// Adds --tokenizer. `standard` describes its default, for example "the model's".
void AddTokenizer(CLI::App& command, std::string& tokenizer, const std::string& standard);

// Adds --special-tokens for `texts`, for example "the prompt".
void AddSpecialTokens(CLI::App& command, data::SpecialTokens& special, const std::string& texts);

}  // namespace halflife::cli
