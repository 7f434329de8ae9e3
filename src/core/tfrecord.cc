#include "core/tfrecord.h"

#include <array>
#include <cerrno>

#include "core/error.h"

namespace halflife {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    }
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

constexpr uint64_t kHeaderBytes = 12, kFooterBytes = 4;

template <typename Word>
std::string LittleEndian(Word value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

template <typename Word>
Word FromLittleEndian(std::string_view bytes) {
  Word value = 0;
  for (size_t i = 0; i < sizeof value; ++i) {
    value |= static_cast<Word>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

bool CrcMatches(std::string_view bytes, std::string_view crc) {
  return MaskedCrc32c(bytes) == FromLittleEndian<uint32_t>(crc);
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

std::string FrameTfRecord(std::string_view payload) {
  const std::string length = LittleEndian<uint64_t>(payload.size());
  std::string record = length + LittleEndian(MaskedCrc32c(length));
  record += payload;
  return record + LittleEndian(MaskedCrc32c(payload));
}

TfRecordReader::TfRecordReader(const std::filesystem::path& path, ExitCode code)
    : path_(path), code_(code), file_(path, std::ios::binary) {
  HL_CHECK_AS(code, file_, "cannot open ", path.string(), ": ", internal::ErrnoText(errno));
  std::error_code error;
  size_ = std::filesystem::file_size(path, error);
  HL_CHECK_AS(code, !error, "cannot read ", path.string(), ": ", error.message());
}

std::optional<std::string> TfRecordReader::Next() {
  std::string header(kHeaderBytes, '\0');
  const std::string_view view = header;
  if (!file_.read(header.data(), kHeaderBytes) || !CrcMatches(view.substr(0, 8), view.substr(8))) {
    return std::nullopt;
  }
  const auto length = FromLittleEndian<uint64_t>(view);
  if (length > size_) return std::nullopt;  // the file ends within this record
  HL_CHECK_AS(code_, length <= kMaxTfRecordBytes, path_.string(), " has a record of ", length,
              " bytes at byte ", offset_, ", more than the limit of ", kMaxTfRecordBytes, " bytes");
  std::string payload(length + kFooterBytes, '\0');
  if (!file_.read(payload.data(), static_cast<std::streamsize>(payload.size())))
    return std::nullopt;
  const std::string footer = payload.substr(length);
  payload.resize(length);
  if (!CrcMatches(payload, footer)) return std::nullopt;
  offset_ += kHeaderBytes + length + kFooterBytes;
  return payload;
}

}  // namespace halflife
