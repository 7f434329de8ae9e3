// Byte-level BPE writes bytes as printable characters (GPT-2's encoder.py, bytes_to_unicode): those
// of Latin-1 that can be seen stand for themselves, the other 68 for U+0100 onwards, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace halflife::data {

// The character of a byte, in UTF-8.
std::string AlphabetCharacter(uint8_t byte);

// The bytes that `token` writes; nothing where a character is not of the alphabet.
std::optional<std::string> BytesOfToken(std::string_view token);

}  // namespace halflife::data
