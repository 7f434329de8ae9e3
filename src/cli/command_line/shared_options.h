// Options that several commands share: those of commands that convert text to tokens, and those of
// commands that compute with a model.
#pragma once

#include <string>

#include "cli/command_line/options.h"
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

// Adds --device and --precision.
void AddPlace(CLI::App& command, PlaceOptions& place);

}  // namespace halflife::cli
