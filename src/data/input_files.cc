#include "data/input_files.h"

#include <glob.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "data/shard_layout.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

const char* ExtensionOf(TextFormat format) {
  constexpr const char* kExtensions[] = {".txt", ".jsonl", ".tsv"};
  return kExtensions[static_cast<int>(format)];
}

std::string KnownExtensions(std::span<const TextFormat> formats) {
  std::string names;
  for (const TextFormat format : formats) names += Concat(ExtensionOf(format), ", ");
  return names + "or one of them with .gz or .zst";
}

Compression CompressionOf(const fs::path& path) {
  if (path.extension() == ".gz") return Compression::kGzip;
  if (path.extension() == ".zst") return Compression::kZstd;
  return Compression::kNone;
}

// Returns ".txt" for "a.txt" and for "a.txt.gz".
fs::path TextExtension(const fs::path& path) {
  const bool packed = CompressionOf(path) != Compression::kNone;
  return (packed ? path.stem() : path).extension();
}

// Classifies a file only by its extensions; returns nothing if they match none of the formats.
std::optional<InputFile> Classify(const fs::path& path, std::span<const TextFormat> formats) {
  const fs::path extension = TextExtension(path);
  for (const TextFormat format : formats) {
    if (extension == ExtensionOf(format))
      return InputFile{.path = path, .format = format, .compression = CompressionOf(path)};
  }
  return std::nullopt;
}

void RequireRegularFile(const fs::path& path) {
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kData, fs::is_regular_file(path, ignored), path.string(),
              " is not a regular file, or is a broken link");
}

std::vector<fs::path> Glob(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return paths;
}

// Skips datasets in the folder, because their tokenizers are also text files.
std::vector<fs::path> FilesBelow(const fs::path& folder) {
  std::vector<fs::path> paths;
  try {
    fs::recursive_directory_iterator entry(folder);
    for (; entry != fs::recursive_directory_iterator(); ++entry) {
      if (entry->is_regular_file()) paths.push_back(entry->path());
      if (entry->is_directory() && fs::exists(entry->path() / kManifestName)) {
        HL_INFO("data", entry->path().string(), " is a dataset, not text; it is skipped");
        entry.disable_recursion_pending();
      }
    }
  } catch (const fs::filesystem_error& error) {
    HL_FAIL(ExitCode::kData, "cannot list ", folder.string(), ": ", error.code().message());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Collector {
 public:
  explicit Collector(std::span<const TextFormat> formats) : formats_(formats) {}
  void Add(const fs::path& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      for (const fs::path& below : FilesBelow(path)) {
        if (!AddFile(below, below.lexically_relative(path))) ++found_.num_skipped;
      }
      return;
    }
    HL_CHECK_AS(ExitCode::kData, AddFile(path, path.filename()), path.string(),
                " has an unknown extension. Use ", KnownExtensions(formats_));
  }
  InputFiles Take() { return std::move(found_); }

 private:
  bool AddFile(const fs::path& path, const fs::path& name) {
    std::optional<InputFile> file = Classify(path, formats_);
    if (!file) return false;
    RequireRegularFile(path);
    if (!seen_.insert(fs::canonical(path)).second) return true;
    file->bytes = fs::file_size(path);
    file->name = name.string();
    found_.files.push_back(*std::move(file));
    return true;
  }

  std::span<const TextFormat> formats_;
  InputFiles found_;
  std::set<fs::path> seen_;
};

}  // namespace

InputFiles FindInputFiles(const std::vector<std::string>& names, const std::string& flag,
                          std::span<const TextFormat> formats) {
  Collector collector(formats);
  for (const std::string& name : names) {
    std::error_code ignored;
    // An existing name is not a pattern, because a file may be called "a[1].txt".
    const std::vector<fs::path> paths =
        fs::exists(name, ignored) ? std::vector<fs::path>{name} : Glob(name);
    HL_CHECK_AS(ExitCode::kData, !paths.empty(), "no file matches ", flag, " ", name,
                ". Give a file, a folder or a pattern of ", KnownExtensions(formats));
    for (const fs::path& path : paths) collector.Add(path);
  }
  InputFiles found = collector.Take();
  HL_CHECK_AS(ExitCode::kData, !found.files.empty(), "the ", flag,
              " folders contain no text: none of ", found.num_skipped, " files ends in ",
              KnownExtensions(formats));
  return found;
}

void RequireApart(const InputFiles& training, const InputFiles& held_out, const std::string& flag) {
  std::set<fs::path> known;
  for (const InputFile& file : training.files) known.insert(fs::canonical(file.path));
  for (const InputFile& file : held_out.files) {
    HL_CHECK_AS(ExitCode::kUsage, !known.contains(fs::canonical(file.path)), file.path.string(),
                " is both in --input and in ", flag,
                ": its loss would be measured on text that was trained "
                "on. Remove it from --input.");
  }
}

uint64_t DiskBytes(const InputFiles& inputs) {
  uint64_t bytes = 0;
  for (const InputFile& file : inputs.files) bytes += file.bytes;
  return bytes;
}

InputFile PlainTextFile(const fs::path& path) {
  RequireRegularFile(path);
  HL_CHECK_AS(ExitCode::kData, TextExtension(path) != ".jsonl", path.string(),
              " contains records, not one text. Make a dataset of it with `halflife prepare "
              "--validation-input`.");
  return {.path = path,
          .compression = CompressionOf(path),
          .bytes = fs::file_size(path),
          .name = path.filename().string()};
}

}  // namespace halflife::data
