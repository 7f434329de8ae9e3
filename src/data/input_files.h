// Which files `prepare` reads: .txt and .jsonl, each also as .gz or .zst; named, in folders, or by
// glob pattern.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace halflife::data {

enum class TextFormat : uint8_t { kText, kJsonl };
enum class Compression : uint8_t { kNone, kGzip, kZstd };

struct InputFile {
  std::filesystem::path path;
  TextFormat format = TextFormat::kText;
  Compression compression = Compression::kNone;
  uint64_t bytes = 0;  // on disk
};

struct InputFiles {
  std::vector<InputFile> files;
  int64_t num_skipped = 0;  // files of folders with another extension
};

// Named files in the given order, folders recursively and sorted by path, patterns in glob(7)'s
// order; a file met twice counts once. Error kData for a name that matches nothing or a named file
// with an unknown extension. `flag`: where the names come from, for errors.
InputFiles FindInputFiles(const std::vector<std::string>& names,
                          const std::string& flag = "--input");

// One file of plain text, whatever its name; compressed where that ends in .gz or .zst. Error kData
// for what is no regular file, and for .jsonl.
InputFile PlainTextFile(const std::filesystem::path& path);

}  // namespace halflife::data
