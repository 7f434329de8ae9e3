// The text of an input file, decompressed on the way: plain, gzip (several members too) or zstd
// (several frames too).
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
  // Up to `size` bytes; 0 at the end only. Error kData names the file: damaged or cut compression,
  // read errors.
  virtual size_t Read(char* out, size_t size) = 0;
  // Bytes taken from the disk so far.
  virtual uint64_t disk_bytes() const = 0;
};

std::unique_ptr<ByteStream> OpenByteStream(const InputFile& file);

}  // namespace halflife::data
