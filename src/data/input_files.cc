#include "data/input_files.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/files.h"
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
  Collector(const std::string& flag, std::span<const TextFormat> formats)
      : flag_(flag), formats_(formats) {}
  void Add(const fs::path& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      HL_CHECK_AS(ExitCode::kData, !fs::exists(path / kManifestName, ignored), flag_, " ",
                  path.string(), " is a dataset, not text: it has a ", kManifestName,
                  ". Name the text of which the dataset was made.");
      for (const fs::path& below : FilesBelow(path)) {
        if (!AddFile(below, below.lexically_relative(path))) ++found_.num_skipped;
      }
      return;
    }
    HL_CHECK_AS(ExitCode::kData, AddFile(path, path.filename()), path.string(),
                " has an unknown extension. Use ", KnownExtensions(formats_),
                path.extension() == ".parquet"
                    ? ". docs/data_format.md#parquet has the command that converts Parquet"
                    : "");
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

  const std::string& flag_;
  std::span<const TextFormat> formats_;
  InputFiles found_;
  std::set<fs::path> seen_;
};

}  // namespace

std::vector<fs::path> MatchingPaths(const std::string& name) {
  std::error_code ignored;
  return fs::exists(name, ignored) ? std::vector<fs::path>{name} : Glob(name);
}

InputFiles FindInputFiles(const std::vector<std::string>& names, const std::string& flag,
                          std::span<const TextFormat> formats) {
  Collector collector(flag, formats);
  for (const std::string& name : names) {
    const std::vector<fs::path> paths = MatchingPaths(name);
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

namespace {

namespace fs = std::filesystem;

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const fs::path& path)
      : path_(path), fd_(OpenFile(path, O_RDONLY, ExitCode::kData)) {
    ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);  // only a hint; failure is harmless
  }

  size_t Read(char* out, size_t size) override {
    ssize_t got = 0;
    do {
      got = ::read(fd_.get(), out, size);
    } while (got < 0 && errno == EINTR);
    HL_CHECK_AS(ExitCode::kData, got >= 0, "cannot read ", path_.string(), ": ",
                internal::ErrnoText(errno));
    bytes_ += static_cast<uint64_t>(got);
    return static_cast<size_t>(got);
  }
  uint64_t disk_bytes() const override { return bytes_; }

 private:
  const fs::path path_;
  const Fd fd_;
  uint64_t bytes_ = 0;
};

// The part that gzip and zstd share: a buffer of compressed bytes from a plain stream.
class CompressedStream : public ByteStream {
 public:
  explicit CompressedStream(const fs::path& path) : path_(path), source_(path), buffer_(1 << 17) {}
  uint64_t disk_bytes() const override { return source_.disk_bytes(); }

 protected:
  size_t Refill() { return source_.Read(buffer_.data(), buffer_.size()); }
  [[noreturn]] void FailCut() const {
    HL_FAIL(ExitCode::kData, path_.string(),
            " ends in the middle of its compressed data: it was "
            "truncated. Copy or download it again.");
  }
  [[noreturn]] void FailDamaged(const char* format, const char* words) const {
    HL_FAIL(ExitCode::kData, path_.string(), " is not valid ", format, " near byte ",
            source_.disk_bytes(), ": ", words, ". Copy or download it again.");
  }

  const fs::path path_;
  PlainStream source_;
  std::vector<char> buffer_;
};

class GzipStream : public CompressedStream {
 public:
  explicit GzipStream(const fs::path& path) : CompressedStream(path) {
    constexpr int kGzipFormat = 15 + 16;  // window bits, and only the gzip format
    HL_CHECK(::inflateInit2(&zlib_, kGzipFormat) == Z_OK, "cannot initialise zlib");
  }
  ~GzipStream() override { ::inflateEnd(&zlib_); }

  size_t Read(char* out, size_t size) override {
    size = std::min(size, size_t{1} << 30);  // zlib counts in 32 bits
    zlib_.next_out = reinterpret_cast<Bytef*>(out);
    zlib_.avail_out = static_cast<uInt>(size);
    while (zlib_.avail_out == size) {
      // After a full output buffer, zlib may still hold text of the current member. Read that
      // before the file.
      if (zlib_.avail_in == 0 && !may_flush_ && !Feed()) return 0;
      if (!in_member_) ::inflateReset(&zlib_);  // start the next member of the file
      in_member_ = true;
      const int result = ::inflate(&zlib_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) in_member_ = false;
      may_flush_ = in_member_ && zlib_.avail_out == 0;
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        FailDamaged("gzip", zlib_.msg != nullptr ? zlib_.msg : ::zError(result));
      }
    }
    return size - zlib_.avail_out;
  }

 private:
  // Returns false at the end of the file, which must also be the end of a member.
  bool Feed() {
    zlib_.avail_in = static_cast<uInt>(Refill());
    zlib_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    if (zlib_.avail_in == 0 && in_member_) FailCut();
    return zlib_.avail_in > 0;
  }

  z_stream zlib_{};
  bool in_member_ = true;  // a file must begin with a member
  bool may_flush_ = false;
};

struct ZstdDeleter {
  void operator()(ZSTD_DCtx* context) const { ::ZSTD_freeDCtx(context); }
};

class ZstdStream : public CompressedStream {
 public:
  explicit ZstdStream(const fs::path& path) : CompressedStream(path), zstd_(::ZSTD_createDCtx()) {
    HL_CHECK(zstd_ != nullptr, "cannot initialise zstd");
    // Frames of `zstd --long` may have any window. The default limit is 2^27 bytes.
    const int largest = ::ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound;
    const size_t result = ::ZSTD_DCtx_setParameter(zstd_.get(), ZSTD_d_windowLogMax, largest);
    HL_CHECK(!::ZSTD_isError(result), "cannot initialise zstd");
  }

  size_t Read(char* out, size_t size) override {
    ZSTD_outBuffer output{out, size, 0};
    while (output.pos == 0) {
      // After a full output buffer, zstd may still hold text of the current frame. Read that before
      // the file.
      if (input_.pos == input_.size && !may_flush_) {
        input_ = {buffer_.data(), Refill(), 0};
        if (input_.size == 0 && in_frame_) FailCut();
        if (input_.size == 0) return 0;
      }
      const size_t result = ::ZSTD_decompressStream(zstd_.get(), &output, &input_);
      if (::ZSTD_isError(result)) FailDamaged("zstd", ::ZSTD_getErrorName(result));
      in_frame_ = result != 0;
      may_flush_ = in_frame_ && output.pos == size;
    }
    return output.pos;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, ZstdDeleter> zstd_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool in_frame_ = true;  // a file must begin with a frame
  bool may_flush_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> OpenByteStream(const InputFile& file) {
  switch (file.compression) {
    case Compression::kGzip:
      return std::make_unique<GzipStream>(file.path);
    case Compression::kZstd:
      return std::make_unique<ZstdStream>(file.path);
    case Compression::kNone:
      break;
  }
  return std::make_unique<PlainStream>(file.path);
}

}  // namespace halflife::data
