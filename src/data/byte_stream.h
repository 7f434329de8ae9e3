// The text of an input file, decompressed while it is read. The file is plain, gzip (with one or
// more members) or zstd (with one or more frames).
//
//   const std::unique_ptr<ByteStream> stream = OpenByteStream(file);
//   while (const size_t n = stream->Read(buffer, sizeof buffer)) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "data/input_files.h"

namespace halflife::data {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Reads up to `size` bytes; returns 0 only at the end. Throws Error kData, naming the file, for
  // damaged or truncated compressed data and for read errors.
  virtual size_t Read(char* out, size_t size) = 0;
  // Bytes read from the disk so far.
  virtual uint64_t disk_bytes() const = 0;
};

std::unique_ptr<ByteStream> OpenByteStream(const InputFile& file);

}  // namespace halflife::data
