#include "data/bpe/added_tokens.h"

#include <algorithm>

namespace halflife::data {
namespace {

// The number of bytes of the white space character (Unicode White_Space) at the start of `text`; 0
// if there is none.
size_t SpaceAtStart(std::string_view text) {
  static constexpr std::array<std::string_view, 25> kSpaces = {
      "\t",           "\n",           "\v",
      "\f",           "\r",           " ",
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
      "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82",
      "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85",
      "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88",
      "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
      "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F",
      "\xE3\x80\x80"};
  for (const std::string_view space : kSpaces) {
    if (text.starts_with(space)) return space.size();
  }
  return 0;
}

size_t SkipSpaces(std::string_view text, size_t at) {
  while (const size_t bytes = SpaceAtStart(text.substr(at))) at += bytes;
  return at;
}

// The start of the white space that ends at `end`.
size_t SpacesBefore(std::string_view text, size_t end) {
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (SpaceAtStart(text.substr(begin)) != end - begin) break;
    end = begin;
  }
  return end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    Range& range = by_first_byte_[static_cast<uint8_t>(tokens_[i].content.front())];
    if (range.end == 0) range.begin = i;
    range.end = i + 1;
  }
}

// Narrows the range of sorted tokens byte by byte to those that match the text.
const AddedToken* AddedTokenMatcher::LongestAt(std::string_view text, size_t at) const {
  const Range first = by_first_byte_[static_cast<uint8_t>(text[at])];
  auto begin = tokens_.begin() + first.begin, end = tokens_.begin() + first.end;
  const AddedToken* longest = nullptr;
  for (size_t depth = 1; begin != end; ++depth) {
    // The shortest token is first: either it is exactly the matched prefix, or no token is.
    if (begin->content.size() == depth) longest = &*begin++;
    if (at + depth == text.size()) break;
    const auto next = static_cast<uint8_t>(text[at + depth]);
    const auto byte = [depth](const AddedToken& token) {
      return static_cast<uint8_t>(token.content[depth]);
    };
    begin = std::partition_point(begin, end, [&](const auto& t) { return byte(t) < next; });
    end = std::partition_point(begin, end, [&](const auto& t) { return byte(t) == next; });
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view text,
                              const std::function<void(std::string_view)>& on_text,
                              const std::function<void(int32_t)>& on_token) const {
  size_t done = 0;  // everything before was passed to a callback
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = LongestAt(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t begin = token->lstrip ? SpacesBefore(text, at) : at;
    if (begin > done) on_text(text.substr(done, begin - done));
    on_token(token->id);
    at += token->content.size();
    done = token->rstrip ? SkipSpaces(text, at) : at;
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace halflife::data
