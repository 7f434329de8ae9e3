// Finds added tokens in a text: at each place the longest that begins there, from left to right,
// and white space around it where the token takes that too.
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

  // Calls one of the two for each part of `text` (valid UTF-8), in order.
  void Split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;

 private:
  // The longest token at `at`; null: none.
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  struct Range {
    uint32_t begin = 0, end = 0;
  };
  std::vector<AddedToken> tokens_;        // by content
  std::array<Range, 256> by_first_byte_;  // of tokens_
};

}  // namespace halflife::data
