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

// Rotated and shifted, so that the CRC of data that holds CRCs stays a good one.
uint32_t MaskedCrc32c(std::string_view bytes);

std::string FrameTfRecord(std::string_view payload);

// Bounds what a file can make its reader allocate; a message takes some 30 times its payload at
// worst.
constexpr uint64_t kMaxTfRecordBytes = 16 << 20;

class TfRecordReader {
 public:
  // Error `code` where the file cannot be opened.
  TfRecordReader(const std::filesystem::path& path, ExitCode code);
  // The next payload; nullopt at the end and at a torn or damaged record, behind which no reader
  // looks. Error `code` for one of more than kMaxTfRecordBytes.
  std::optional<std::string> Next();
  // Bytes of the whole records read so far.
  uint64_t offset() const { return offset_; }

 private:
  std::filesystem::path path_;
  ExitCode code_;
  std::ifstream file_;
  uint64_t offset_ = 0;
  uint64_t size_;
};

}  // namespace halflife
