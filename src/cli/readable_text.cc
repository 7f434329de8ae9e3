#include "cli/readable_text.h"

#include "core/error.h"
#include "data/utf8.h"

namespace halflife::cli {

void CheckReadable(const std::string& name, const std::string& text,
                   const data::Tokenizer& tokenizer, ExitCode code) {
  if (tokenizer.keeps_invalid_bytes()) return;
  const size_t place = data::FindInvalidUtf8(text);
  HL_CHECK_AS(code, place == std::string::npos, name, " is not UTF-8 from byte ", place,
              " on, and the tokenizer (", tokenizer.kind(),
              ") reads characters; UTF-8 text would work");
  const std::vector<std::string> unknown = data::UnknownCharacters(tokenizer, text);
  HL_CHECK_AS(code, unknown.empty(), name, " has characters that the ", tokenizer.kind(),
              " tokenizer has no tokens for: '", Join(unknown, "', '"),
              "'; text without them would work");
}

}  // namespace halflife::cli
