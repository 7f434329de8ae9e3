#include "data/bpe/byte_alphabet.h"

#include <array>

namespace halflife::data {
namespace {

constexpr uint32_t kFirstStandIn = 0x100;

constexpr bool ShowsItself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint16_t, 256> MakeCodePoints() {
  std::array<uint16_t, 256> code_points{};
  uint32_t stand_in = kFirstStandIn;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    code_points[byte] = static_cast<uint16_t>(ShowsItself(byte) ? byte : stand_in++);
  }
  return code_points;
}

constexpr std::array<uint16_t, 256> kCodePoints = MakeCodePoints();

// The byte of each code point below 0x144; -1 if there is none.
constexpr std::array<int16_t, 0x144> MakeBytes() {
  std::array<int16_t, 0x144> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    bytes[kCodePoints[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, 0x144> kBytes = MakeBytes();
static_assert(kCodePoints[' '] == 0x120 && kCodePoints[0xAD] == 0x143);

}  // namespace

std::string AlphabetCharacter(uint8_t byte) {
  const uint16_t code_point = kCodePoints[byte];
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::optional<std::string> BytesOfToken(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    uint32_t code_point = static_cast<uint8_t>(token[i]);
    if (code_point >= 0x80) {
      // Two UTF-8 bytes cover all code points of the alphabet, which ends at U+0143.
      if (code_point < 0xC2 || code_point > 0xDF || ++i == token.size()) return std::nullopt;
      code_point = (code_point & 0x1F) << 6 | (static_cast<uint8_t>(token[i]) & 0x3F);
    }
    if (code_point >= kBytes.size() || kBytes[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[code_point]);
  }
  return bytes;
}

}  // namespace halflife::data
