// Which files `prepare` reads: .txt, .jsonl or .tsv, each also as .gz or .zst; named, in folders,
// or by glob pattern.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace halflife::data {

enum class TextFormat : uint8_t { kText, kJsonl, kTsv };
// Those of text, and those of records with several fields.
constexpr TextFormat kTextFormats[] = {TextFormat::kText, TextFormat::kJsonl};
constexpr TextFormat kRecordFormats[] = {TextFormat::kTsv, TextFormat::kJsonl};
enum class Compression : uint8_t { kNone, kGzip, kZstd };

struct InputFile {
  std::filesystem::path path;
  TextFormat format = TextFormat::kText;
  Compression compression = Compression::kNone;
  uint64_t bytes = 0;     // on disk
  std::string name = {};  // the file's name, or its path below the folder that was given
};

struct InputFiles {
  std::vector<InputFile> files;
  int64_t num_skipped = 0;  // files of folders with another extension
};

// Named files in the given order, folders recursively (but for datasets in them) and sorted by
// path, patterns in glob(7)'s order; a file met twice counts once. Error kData for a name that
// matches nothing or a named file of another format. `flag`: where the names come from, for errors.
InputFiles FindInputFiles(const std::vector<std::string>& names,
                          const std::string& flag = "--input",
                          std::span<const TextFormat> formats = kTextFormats);
// A loss on text that was trained on says nothing of other text. Error kUsage for a file in both;
// `flag`: of `held_out`.
void RequireApart(const InputFiles& training, const InputFiles& held_out, const std::string& flag);
uint64_t DiskBytes(const InputFiles& inputs);

// One file of plain text, whatever its name; compressed where that ends in .gz or .zst. Error kData
// for what is no regular file, and for .jsonl.
InputFile PlainTextFile(const std::filesystem::path& path);

}  // namespace halflife::data
