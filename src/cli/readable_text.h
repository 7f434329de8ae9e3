// Text that a user gives to a model, checked before anything long begins.
#pragma once

#include <string>

#include "core/exit_code.h"
#include "data/tokenizer.h"

namespace halflife::cli {

// Throws an Error of `code`, in which the text is called `name`, where the tokenizer would read
// other text than is there: bytes that are not UTF-8 as U+FFFD, characters without tokens as unk.
void CheckReadable(const std::string& name, const std::string& text,
                   const data::Tokenizer& tokenizer, ExitCode code);

}  // namespace halflife::cli
