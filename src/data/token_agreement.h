// Checks that ids mean the same to a model and to the text that it reads. Vocabularies of equal
// size are not sufficient.
#pragma once

#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/tokenizer.h"

namespace halflife::data {

struct TokenDifference {
  int32_t id = 0;
  std::string left, right;  // the text that the id represents in each tokenizer
};
// Returns the first id that is in both vocabularies and represents different text in the two.
std::optional<TokenDifference> FindDifference(const Tokenizer& left, const Tokenizer& right);

// Throws Error kUsage if an id of the dataset represents different text, or none, in `own`, the
// model's tokenizer. `where` describes the owner of the model's tokenizer for the error message.
void RequireSameTokens(const Dataset& dataset, const Tokenizer& own, const std::string& where);

}  // namespace halflife::data
