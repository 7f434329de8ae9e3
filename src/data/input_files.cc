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

// By the extensions alone; nothing where they are not ours.
std::optional<InputFile> Classify(const fs::path& path) {
  InputFile file{.path = path};
  fs::path stem = path;
  if (path.extension() == ".gz") file.compression = Compression::kGzip;
  if (path.extension() == ".zst") file.compression = Compression::kZstd;
  if (file.compression != Compression::kNone) stem = path.stem();
  if (stem.extension() == ".jsonl") {
    file.format = TextFormat::kJsonl;
  } else if (stem.extension() != ".txt") {
    return std::nullopt;
  }
  return file;
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
    std::error_code ignored;
    HL_CHECK_AS(ExitCode::kData, fs::is_regular_file(path, ignored), path.string(),
                " is no regular file, or a link to nowhere");
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

}  // namespace halflife::data
