// Labelled text as tokens and labels: a text with its class, or a prompt with its answer.
//
//   const ExampleEncoder encoder(*tokenizer, {.row_len = 128, .too_long = TooLong::kCut});
//   const Example example = encoder.OfAnswer("2 + 2 =", " 4", "pairs.jsonl:7");
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace halflife::data {

// What becomes of an example of more tokens than a row.
enum class TooLong : uint8_t { kError, kCut, kDrop };
const char* Name(TooLong rule);  // "error", "cut", "drop"

struct ExampleRules {
  int64_t row_len = 512;
  TooLong too_long = TooLong::kError;
  // How prompts and answers are read. The text of a class is always kPlain.
  SpecialTokens special_tokens = SpecialTokens::kParse;
};

// Nothing is left of a dropped one.
struct Example {
  std::vector<int32_t> ids, labels;  // as many; kNoTarget where nothing is asked
  int64_t num_bytes = 0;             // of text, before a cut
  bool cut = false, dropped = false;
};

class ExampleEncoder {
 public:
  // `tokenizer` is borrowed for the encoder's life.
  ExampleEncoder(const Tokenizer& tokenizer, const ExampleRules& rules)
      : tokenizer_(tokenizer), rules_(rules) {}

  // The text and eos, which stays where the text is cut; the first token's label is the class.
  // `place` is for errors, which are kData: too long, without leave to cut or drop.
  Example OfClass(std::string_view text, int32_t label, const std::string& place) const;
  // Prompt, answer and eos. The first two are tokenised separately, so that the prompt without its
  // answer has the same ids. They may contain eos tokens themselves (ExampleRules::special_tokens):
  // the example is still one document. The label of a token is the next token if that belongs to
  // the answer or is the final eos. A cut answer ends without eos. An example whose answer is cut
  // away completely is dropped.
  Example OfAnswer(std::string_view prompt, std::string_view answer,
                   const std::string& place) const;

 private:
  // Shortens `ids` to the row, or refuses; false: the example is to be dropped.
  bool Fit(std::vector<int32_t>& ids, const std::string& place) const;

  const Tokenizer& tokenizer_;
  const ExampleRules rules_;
};

}  // namespace halflife::data
