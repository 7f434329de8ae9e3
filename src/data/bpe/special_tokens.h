// Special tokens: finds the bos, eos, pad and unk tokens in the files that accompany tokenizer.json
// in a Hugging Face folder, and finds added tokens in a text.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer.h"

namespace halflife::data {

// The files that are searched; each may be missing.
inline constexpr const char* kSpecialTokenFiles[] = {
    "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"};

// Finds the special tokens. `files` maps file names to contents.
//
// - eos: the first that is given of a name in tokenizer_config.json or special_tokens_map.json, an
//   id in generation_config.json or config.json, and the end of tokenizer.json's template.
// - bos, pad and unk: by name, if the name is a special added token. If no file names bos, it is
//   the token with which tokenizer.json's template begins texts, which transformers adds then, too.
//
// Throws Error kData if no file names an eos, or if the eos is not a token or can result from plain
// text.
SpecialIds FindSpecialTokens(const BpeSpec& spec, const std::string& name,
                             const std::map<std::string, std::string>& files);

// Returns a tokenizer_config.json with the same information.
std::string TokenizerConfigJson(const BpeSpec& spec, const SpecialIds& ids);

// Finds added tokens in a text, from left to right and at each position the longest one. A match
// includes surrounding white space if the token is defined so (lstrip, rstrip).
//
//   const AddedTokenMatcher matcher(tokens);
//   matcher.Split(text, [&](std::string_view between) { ... }, [&](int32_t id) { ... });
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  // Calls `on_text` or `on_token` for each part of `text`, in order. `text` must be valid UTF-8.
  void Split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;
  // Returns where Split finds tokens, without those that also match white space before them. The
  // part of the text before such a token is split as if the text ended there.
  std::vector<NameRange> FindAll(std::string_view text) const;

 private:
  // Returns the longest token at position `at`; null if there is none.
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  struct Range {
    uint32_t begin = 0, end = 0;
  };
  std::vector<AddedToken> tokens_;        // sorted by content
  std::array<Range, 256> by_first_byte_;  // ranges of tokens_
};

}  // namespace halflife::data
