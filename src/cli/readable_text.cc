#include "cli/readable_text.h"

#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "data/utf8.h"

namespace halflife::cli {

void CheckReadable(const std::string& name, const std::string& text,
                   const data::Tokenizer& tokenizer, data::SpecialTokens special, ExitCode code) {
  if (tokenizer.keeps_invalid_bytes()) return;
  const size_t place = data::FindInvalidUtf8(text);
  HL_CHECK_AS(code, place == std::string::npos, name, " is not UTF-8 from byte ", place,
              " on, and the tokenizer (", tokenizer.kind(), ") reads characters. Use UTF-8 text.");
  const std::vector<std::string> unknown = data::UnknownCharacters(tokenizer, text, special);
  HL_CHECK_AS(code, unknown.empty(), name, " has characters that the ", tokenizer.kind(),
              " tokenizer has no tokens for: '", Join(unknown, "', '"),
              "'. Use text without them.");
}

void WarnOfSpecialNames(const char* command, const std::string& from,
                        const data::NameCounts& counts, const std::string& remedy) {
  if (counts.empty()) return;
  std::vector<std::string> names;
  for (const auto& [name, count] : counts)
    names.push_back(Concat("'", name, "' (", Counted(count, "time"), ")"));
  HL_WARN(command, from,
          " contains names of special tokens, which are read as characters: ", Join(names, ", "),
          ". ", remedy);
}

}  // namespace halflife::cli
