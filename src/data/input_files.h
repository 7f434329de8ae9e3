// Finds the files that `prepare` reads: .txt, .jsonl or .tsv, each optionally with .gz or .zst.
// They are given by name, by folder or by glob pattern. Also opens them as streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace halflife::data {

enum class TextFormat : uint8_t { kText, kJsonl, kTsv };
// The formats of plain text, and those of records with several fields.
constexpr TextFormat kTextFormats[] = {TextFormat::kText, TextFormat::kJsonl};
constexpr TextFormat kRecordFormats[] = {TextFormat::kTsv, TextFormat::kJsonl};
enum class Compression : uint8_t { kNone, kGzip, kZstd };

struct InputFile {
  std::filesystem::path path;
  TextFormat format = TextFormat::kText;
  Compression compression = Compression::kNone;
  uint64_t bytes = 0;     // size on disk
  std::string name = {};  // the file's name, or its path relative to the folder that was given
};

struct InputFiles {
  std::vector<InputFile> files;
  int64_t num_skipped = 0;  // files of folders with another extension
};

// Returns named files in the given order, the files of folders recursively and sorted by path
// (without the datasets in them), and matches of patterns in the order of glob(7). A file that is
// found twice is used once. Throws Error kData if a name matches nothing or is a dataset, or if a
// named file has an unknown format. `flag` is the option that the names come from, for error
// messages.
InputFiles FindInputFiles(const std::vector<std::string>& names,
                          const std::string& flag = "--input",
                          std::span<const TextFormat> formats = kTextFormats);
// Returns the path that has this name, or the matches of a pattern in the order of glob(7). An
// existing name is not a pattern, because a file may be called "a[1].txt".
std::vector<std::filesystem::path> MatchingPaths(const std::string& name);
// Throws Error kUsage if a file is in both lists, because a loss on text that was trained on does
// not measure generalization. `flag` is the option of `held_out`.
void RequireApart(const InputFiles& training, const InputFiles& held_out, const std::string& flag);
uint64_t DiskBytes(const InputFiles& inputs);

// Returns one file of plain text with any name. It is decompressed if the name ends in .gz or .zst.
// Throws Error kData for .jsonl and for anything that is not a regular file.
InputFile PlainTextFile(const std::filesystem::path& path);

// The text of an input file, decompressed while it is read. The file is plain, gzip (with one or
// more members) or zstd (with one or more frames).
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Reads up to `size` bytes; returns 0 only at the end. Throws Error kData, naming the file, for
  // damaged or truncated compressed data and for read errors.
  virtual size_t Read(char* out, size_t size) = 0;
  // Returns the bytes read from the disk so far.
  virtual uint64_t disk_bytes() const = 0;
};

std::unique_ptr<ByteStream> OpenByteStream(const InputFile& file);

}  // namespace halflife::data
