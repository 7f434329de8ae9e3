// The printable characters that byte-level BPE uses for bytes (bytes_to_unicode in GPT-2's
// encoder.py). Visible Latin-1 characters stand for themselves; the other 68 bytes are assigned
// U+0100 and up, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace halflife::data {

// The character of a byte, as UTF-8.
std::string AlphabetCharacter(uint8_t byte);

// The bytes that `token` represents, or nothing if a character is not in the alphabet.
std::optional<std::string> BytesOfToken(std::string_view token);

}  // namespace halflife::data
