#include "data/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace halflife::data {
namespace {

struct Sequence {
  size_t length = 1;  // number of bytes of the sequence
  bool valid = false;
  bool cut = false;  // invalid only because the text ends
};

// Reads the sequence that starts at text[at] (Unicode 15, table 3-7).
Sequence ReadSequence(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte has a narrower range. This excludes overlong forms, surrogates and
  // everything above U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

// Skips ASCII eight bytes at a time.
size_t SkipAscii(std::string_view text, size_t at) {
  uint64_t word = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ull) break;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t at = SkipAscii(text, 0); at < text.size();) {
    const Sequence sequence = ReadSequence(text, at);
    if (!sequence.valid) return at;
    at += sequence.length;
    if (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) at = SkipAscii(text, at);
  }
  return std::string_view::npos;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bad = std::min(FindInvalidUtf8(text), text.size());
    out += text.substr(0, bad);
    text.remove_prefix(bad);
    if (text.empty()) break;
    out += kReplacementCharacter;
    text.remove_prefix(ReadSequence(text, 0).length);
  }
  return out;
}

size_t IncompleteUtf8Tail(std::string_view text) {
  for (size_t tail = std::min<size_t>(3, text.size()); tail > 0; --tail) {
    const Sequence sequence = ReadSequence(text, text.size() - tail);
    if (sequence.cut && sequence.length == tail) return tail;
  }
  return 0;
}

}  // namespace halflife::data
