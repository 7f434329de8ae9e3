// Finds added tokens in a text, from left to right and at each position the longest one. A match
// includes surrounding white space if the token is defined so (lstrip, rstrip).
//
//   const AddedTokenMatcher matcher(tokens);
//   matcher.Split(text, [&](std::string_view between) { ... }, [&](int32_t id) { ... });
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "data/bpe/tokenizer_json.h"

namespace halflife::data {

class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  // Calls `on_text` or `on_token` for each part of `text`, in order. `text` must be valid UTF-8.
  void Split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;

 private:
  // The longest token at position `at`; null if there is none.
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  struct Range {
    uint32_t begin = 0, end = 0;
  };
  std::vector<AddedToken> tokens_;        // sorted by content
  std::array<Range, 256> by_first_byte_;  // ranges of tokens_
};

}  // namespace halflife::data
