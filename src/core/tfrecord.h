// TFRecord framing, little-endian:
//   u64 length | u32 masked CRC-32C of those 8 bytes | payload | u32 masked CRC-32C of the payload
// (github.com/tensorflow/tensorflow, tensorflow/core/lib/io/record_writer.h).
//
//   const std::string record = FrameTfRecord(event.SerializeAsString());
//   WriteAll(fd, record.data(), record.size(), path, code);
//   for (TfRecordReader in(path, code); const auto payload = in.Next();) ...
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "core/exit_code.h"

namespace halflife {

// Returns the CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected, as in RFC 3720 B.4), the
// checksum of TFRecord files.
uint32_t Crc32c(std::string_view bytes);

// Returns the CRC rotated and shifted, so that the CRC of data that itself contains CRCs remains a
// good checksum.
uint32_t MaskedCrc32c(std::string_view bytes);

std::string FrameTfRecord(std::string_view payload);

// Limits how much memory a file can make its reader allocate. A parsed message takes at most about
// 30 times its payload.
constexpr uint64_t kMaxTfRecordBytes = 16 << 20;

class TfRecordReader {
 public:
  // Throws Error `code` if the file cannot be opened.
  TfRecordReader(const std::filesystem::path& path, ExitCode code);
  // Returns the next payload, or nullopt at the end and at a torn or damaged record, after which
  // reading stops. Throws Error `code` for a record of more than kMaxTfRecordBytes.
  std::optional<std::string> Next();
  // The number of bytes in the complete records read so far.
  uint64_t offset() const { return offset_; }

 private:
  std::filesystem::path path_;
  ExitCode code_;
  std::ifstream file_;
  uint64_t offset_ = 0;
  uint64_t size_;
};

}  // namespace halflife
