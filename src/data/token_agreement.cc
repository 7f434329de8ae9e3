#include "data/token_agreement.h"

#include <algorithm>

#include "core/error.h"

namespace halflife::data {

std::optional<TokenDifference> FindDifference(const Tokenizer& left, const Tokenizer& right) {
  const int32_t count = std::min(left.vocab_size(), right.vocab_size());
  for (TokenDifference at; at.id < count; ++at.id) {
    at.left.clear();
    at.right.clear();
    left.AppendBytes(at.id, false, at.left);
    right.AppendBytes(at.id, false, at.right);
    if (at.left != at.right) return at;
  }
  return std::nullopt;
}

void RequireSameTokens(const Dataset& dataset, const Tokenizer& own, const std::string& where) {
  constexpr char kRemedy[] =
      ". Prepare the text with the run's own tokenizer (`halflife prepare --tokenizer "
      "RUN/tokenizer`).";
  const int64_t vocab = dataset.info().vocab_size;
  HL_CHECK_AS(ExitCode::kUsage, vocab <= own.vocab_size(), "the dataset ",
              dataset.folder().string(), " has a vocabulary of ", vocab, ", but the tokenizer of ",
              where, " has one of ", own.vocab_size(), kRemedy);
  const auto difference = FindDifference(*dataset.LoadTokenizer(), own);
  if (!difference) return;
  HL_FAIL(ExitCode::kUsage, "token ", difference->id, " is '", difference->left,
          "' in the dataset ", dataset.folder().string(), ", but '", difference->right, "' in ",
          where, kRemedy);
}

}  // namespace halflife::data
