#include "data/input_files.h"

#include <glob.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/error.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

constexpr char kKnownExtensions[] = ".txt, .jsonl, or one of them with .gz or .zst";

Compression CompressionOf(const fs::path& path) {
  if (path.extension() == ".gz") return Compression::kGzip;
  if (path.extension() == ".zst") return Compression::kZstd;
  return Compression::kNone;
}

// ".txt" of "a.txt" and of "a.txt.gz".
fs::path TextExtension(const fs::path& path) {
  const bool packed = CompressionOf(path) != Compression::kNone;
  return (packed ? path.stem() : path).extension();
}

// By the extensions alone; nothing where they are not ours.
std::optional<InputFile> Classify(const fs::path& path) {
  InputFile file{.path = path, .compression = CompressionOf(path)};
  const fs::path extension = TextExtension(path);
  if (extension == ".jsonl") {
    file.format = TextFormat::kJsonl;
  } else if (extension != ".txt") {
    return std::nullopt;
  }
  return file;
}

void RequireRegularFile(const fs::path& path) {
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kData, fs::is_regular_file(path, ignored), path.string(),
              " is no regular file, or a link to nowhere");
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

std::vector<fs::path> FilesBelow(const fs::path& folder) {
  std::vector<fs::path> paths;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  } catch (const fs::filesystem_error& error) {
    HL_FAIL(ExitCode::kData, "cannot list ", folder.string(), ": ", error.code().message());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Collector {
 public:
  void Add(const fs::path& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      for (const fs::path& below : FilesBelow(path)) {
        if (!AddFile(below)) ++found_.num_skipped;
      }
      return;
    }
    HL_CHECK_AS(ExitCode::kData, AddFile(path), path.string(),
                " has an unknown extension; prepare reads ", kKnownExtensions);
  }
  InputFiles Take() { return std::move(found_); }

 private:
  bool AddFile(const fs::path& path) {
    std::optional<InputFile> file = Classify(path);
    if (!file) return false;
    RequireRegularFile(path);
    if (!seen_.insert(fs::canonical(path)).second) return true;
    file->bytes = fs::file_size(path);
    found_.files.push_back(*std::move(file));
    return true;
  }

  InputFiles found_;
  std::set<fs::path> seen_;
};

}  // namespace

InputFiles FindInputFiles(const std::vector<std::string>& names, const std::string& flag) {
  Collector collector;
  for (const std::string& name : names) {
    std::error_code ignored;
    // A file may be called "a[1].txt": a name that exists is no pattern.
    const std::vector<fs::path> paths =
        fs::exists(name, ignored) ? std::vector<fs::path>{name} : Glob(name);
    HL_CHECK_AS(ExitCode::kData, !paths.empty(), "no file matches ", flag, " ", name,
                "; give a file, a folder or a pattern of ", kKnownExtensions);
    for (const fs::path& path : paths) collector.Add(path);
  }
  InputFiles found = collector.Take();
  HL_CHECK_AS(ExitCode::kData, !found.files.empty(), "the ", flag, " folders hold no text: of ",
              found.num_skipped, " files none ends in ", kKnownExtensions);
  return found;
}

InputFile PlainTextFile(const fs::path& path) {
  RequireRegularFile(path);
  HL_CHECK_AS(ExitCode::kData, TextExtension(path) != ".jsonl", path.string(),
              " holds records, not one text; make a dataset of it with `halflife prepare "
              "--validation-input`");
  return {.path = path, .compression = CompressionOf(path), .bytes = fs::file_size(path)};
}

}  // namespace halflife::data
