// The safetensors container: 8 bytes of little-endian header length, a JSON header, dense data.
// Loading runs no code, and every safetensors reader opens our shards. Headers are treated as
// untrusted.
//
//   // The data starts at head.size().
//   const std::string head = safetensors::BuildHeader(entries, metadata, 4096);
//   const safetensors::Header header = safetensors::ReadHeader(path, ExitCode::kData);
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/exit_code.h"

namespace halflife::ckpt {

// Element types that a file may contain. core's DType is the subset that the program computes with.
enum class StoredDType : uint8_t { kF32, kF64, kBF16, kF16, kI32, kI64, kU8, kBool };
uint64_t SizeOf(StoredDType dtype);
const char* Name(StoredDType dtype);  // The name in safetensors files: "F32", "BF16", ...

// Returns the number of elements of a shape, or -1 if a dimension is negative or the product (times
// 8 bytes) overflows.
int64_t CountElements(const std::vector<int64_t>& shape);
std::string ShapeText(const std::vector<int64_t>& shape);  // Returns, for example, "[512, 16]".

namespace safetensors {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // The limit of the reference reader.

struct Entry {
  std::string name;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // In bytes, from the start of the data.
};

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<Entry> entries;  // Sorted by `begin`, without gaps.
  uint64_t data_offset = 0;    // Offset in the file.
};

// Returns the header for entries in the given order, which must be that of their offsets, without
// gaps, from 0. Its size is a multiple of `alignment` >= 8, padded with spaces.
std::string BuildHeader(const std::vector<Entry>& entries,
                        const std::map<std::string, std::string>& metadata, uint64_t alignment);

// `head` has at least the first 8 + length bytes of a file of `file_bytes` bytes. Throws
// Error(code) unless lengths, types, shapes and offsets agree with each other and with the file's
// size, and all keys are unique.
Header ParseHeader(std::string_view head, uint64_t file_bytes, const std::string& file_name,
                   ExitCode code);
Header ReadHeader(const std::filesystem::path& path, ExitCode code);

}  // namespace safetensors
}  // namespace halflife::ckpt
