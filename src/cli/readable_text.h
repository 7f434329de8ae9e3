// Checks text for a model before a long computation begins.
#pragma once

#include <string>

#include "core/exit_code.h"
#include "data/tokenizer.h"

namespace halflife::cli {

// Throws an Error of `code`, which calls the text `name`, if the tokenizer would not read the text
// exactly: bytes that are not UTF-8 become U+FFFD, and characters without tokens become unk.
void CheckReadable(const std::string& name, const std::string& text,
                   const data::Tokenizer& tokenizer, data::SpecialTokens special, ExitCode code);

// Warns if a text contained names of special tokens that were read as characters. `from`: the
// option that named the text. `remedy`: a sentence.
void WarnOfSpecialNames(const char* command, const std::string& from,
                        const data::NameCounts& counts, const std::string& remedy);
// Advice with --special-tokens and without it.
inline constexpr char kParseThem[] = "Use --special-tokens parse to read them as these tokens.";
inline constexpr char kMarkupInText[] = "Remove them from the text if they are markup.";

}  // namespace halflife::cli
