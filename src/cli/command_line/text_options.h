// The options of commands that turn text into tokens.
#pragma once

#include <string>

#include "data/tokenizer.h"

namespace CLI {
class App;
}

namespace halflife::cli {

// The help of --tokenizer: what data::OpenTokenizer takes.
inline constexpr char kTokenizerHelp[] =
    "`bytes`, a sentencepiece .model file, a byte-level BPE tokenizer.json, or a folder with a "
    "tokenizer, such as a Hugging Face model's";

// --tokenizer, which is by default `standard`, e.g. "the model's".
void AddTokenizer(CLI::App& command, std::string& tokenizer, const std::string& standard);

// --special-tokens for `texts`, e.g. "the prompt".
void AddSpecialTokens(CLI::App& command, data::SpecialTokens& special, const std::string& texts);

}  // namespace halflife::cli
