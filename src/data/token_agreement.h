// Ids must mean the same to a model and to the text it reads: tables of the same size are not
// enough.
#pragma once

#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/tokenizer.h"

namespace halflife::data {

struct TokenDifference {
  int32_t id = 0;
  std::string left, right;  // what it stands for
};
// The first id that both have and that stands for other text in one than in the other.
std::optional<TokenDifference> FindDifference(const Tokenizer& left, const Tokenizer& right);

// Error kUsage where an id of the dataset stands for other text in `own`, the model's tokenizer, or
// for none. `where`: what carries it, for the error.
void RequireSameTokens(const Dataset& dataset, const Tokenizer& own, const std::string& where);

}  // namespace halflife::data
