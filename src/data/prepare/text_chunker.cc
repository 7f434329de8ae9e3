#include "data/prepare/text_chunker.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "core/human.h"
#include "data/utf8.h"

namespace halflife::data {
namespace {

constexpr std::string_view kWhitespace = " \t\r\n";

constexpr size_t kNone = std::string_view::npos;

size_t NewlineBefore(std::string_view text, size_t newline) {
  return newline == 0 ? kNone : text.rfind('\n', newline - 1);
}

// Returns true if the line that ends at `newline` is blank. The first line of a chunk that
// continues a document is the rest of a line and is never blank.
bool EndsBlankLine(std::string_view text, size_t newline, bool continues) {
  const size_t before = NewlineBefore(text, newline);
  if (before == kNone && continues) return false;
  const size_t begin = before == kNone ? 0 : before + 1;
  return text.substr(begin, newline - begin).find_first_not_of(kBlanks) == kNone;
}

// Returns the start of the line after the last blank line, or nothing if there is no blank line.
std::optional<size_t> AfterLastBlankLine(std::string_view text, bool continues) {
  for (size_t newline = text.rfind('\n'); newline != kNone; newline = NewlineBefore(text, newline))
    if (EndsBlankLine(text, newline, continues)) return newline + 1;
  return std::nullopt;
}

// Returns the first start of a line at or after `from`. With `after_blank`, only lines that follow
// a blank line count.
std::optional<size_t> LineStartFrom(std::string_view text, size_t from, bool after_blank,
                                    bool continues) {
  for (size_t newline = text.find('\n', from == 0 ? 0 : from - 1); newline != kNone;
       newline = text.find('\n', newline + 1)) {
    if (!after_blank || EndsBlankLine(text, newline, continues)) return newline + 1;
  }
  return std::nullopt;
}

// Returns the first start of a character at or after `from`, or nothing if the text ends before it
// is known. Bytes that are not UTF-8 are skipped like a character.
std::optional<size_t> CharacterStartFrom(std::string_view text, size_t from) {
  constexpr size_t kMaxContinuationBytes = 3;
  const size_t most = from + kMaxContinuationBytes;
  size_t at = from;
  while (at < text.size() && at < most && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
  return at < text.size() || at == most ? std::optional(at) : std::nullopt;
}

// Returns the number of bytes of the text. A compressed file is decompressed once to count them.
int64_t TextBytes(const InputFile& file) {
  if (file.compression == Compression::kNone) return static_cast<int64_t>(file.bytes);
  const std::unique_ptr<ByteStream> stream = OpenByteStream(file);
  std::string buffer(1 << 20, '\0');
  int64_t size = 0;
  while (const size_t got = stream->Read(buffer.data(), buffer.size()))
    size += static_cast<int64_t>(got);
  return size;
}

// Returns the length of the next piece of a long document. A piece ends after a whole character
// that is not blank, so the positions of the cuts never decide whether a line is blank.
size_t PieceLength(std::string_view text) {
  text.remove_suffix(IncompleteUtf8Tail(text));
  const size_t last = text.find_last_not_of(kWhitespace);
  return last == std::string_view::npos ? 0 : last + 1;
}

}  // namespace

const char* Name(DocumentMode mode) {
  constexpr const char* kNames[] = {"file", "line", "blank_lines", "record"};
  return kNames[static_cast<int>(mode)];
}

namespace {

constexpr size_t kEscapeBytes = 6;  // of \uXXXX

// Returns the 16 bits of the escape \uXXXX at position `at`, or nothing if there is none.
std::optional<uint16_t> UnicodeEscape(std::string_view json, size_t at) {
  const std::string_view escape = json.substr(std::min(at, json.size()), kEscapeBytes);
  uint16_t value = 0;
  if (escape.size() < kEscapeBytes || !escape.starts_with("\\u")) return std::nullopt;
  const auto [end, error] =
      std::from_chars(escape.data() + 2, escape.data() + kEscapeBytes, value, 16);
  const bool whole = error == std::errc() && end == escape.data() + kEscapeBytes;
  return whole ? std::optional(value) : std::nullopt;
}

// Returns the position of the first escape at or after `from` that is one half of a surrogate pair
// without the other, or npos. `from` must not be within an escape.
size_t FindLoneSurrogate(std::string_view json, size_t from) {
  const auto is_half = [&](size_t at, uint16_t first) {
    const std::optional<uint16_t> value = UnicodeEscape(json, at);
    return value && *value >= first && *value < first + 0x400;
  };
  for (size_t at = from; (at = json.find('\\', at)) != kNone;) {
    const bool high = is_half(at, 0xD800), low = is_half(at, 0xDC00);
    const bool pair = high && is_half(at + kEscapeBytes, 0xDC00);
    if (!pair && (high || low)) return at;
    at += pair ? 2 * kEscapeBytes : 2;
  }
  return kNone;
}

// As RequireUtf8, for the escapes of JSON records.
void RequirePairedSurrogates(TextChunk& chunk, bool replace) {
  for (size_t at = 0; (at = FindLoneSurrogate(chunk.text, at)) != kNone; at += kEscapeBytes) {
    const auto line =
        chunk.first_line +
        std::count(chunk.text.begin(), chunk.text.begin() + static_cast<int64_t>(at), '\n');
    HL_CHECK_AS(ExitCode::kData, replace, chunk.file->path.string(), ":", line, ": the escape ",
                chunk.text.substr(at, kEscapeBytes),
                " is half of a surrogate pair, which is no character. Correct the file, or replace "
                "such escapes by U+FFFD with `halflife prepare --invalid-utf8 replace`.");
    chunk.text.replace(at, kEscapeBytes, "\\ufffd");
  }
}

}  // namespace

void RequireUtf8(TextChunk& chunk, bool replace) {
  if (chunk.file->format == TextFormat::kJsonl) RequirePairedSurrogates(chunk, replace);
  const size_t bad = FindInvalidUtf8(chunk.text);
  if (bad == std::string::npos) return;
  const auto line =
      chunk.first_line +
      std::count(chunk.text.begin(), chunk.text.begin() + static_cast<int64_t>(bad), '\n');
  HL_CHECK_AS(
      ExitCode::kData, replace, chunk.file->path.string(), ": byte ",
      chunk.offset + static_cast<int64_t>(bad), " of the text (line ", line,
      ") is not valid UTF-8. Convert the file, or replace invalid bytes by U+FFFD with `halflife "
      "prepare --invalid-utf8 replace`.");
  chunk.text = ReplaceInvalidUtf8(chunk.text);
}

TextChunker::TextChunker(const std::vector<InputFile>& files, const ChunkerConfig& config)
    : files_(files), config_(config) {
  for (const InputFile& file : files) {
    HL_CHECK_AS(ExitCode::kUsage, config.validation_tail == 0 || file.format == TextFormat::kText,
                "--validation-tail cuts .txt files, and ", file.path.string(),
                " contains records. Use --validation-fraction or --validation-input.");
  }
}

DocumentMode TextChunker::mode() const {
  const bool text = files_[next_file_ - 1].format == TextFormat::kText;
  return text ? config_.documents : DocumentMode::kRecord;
}

bool TextChunker::OpenNextFile() {
  if (next_file_ == files_.size()) return false;
  const InputFile& file = files_[next_file_++];
  stream_ = OpenByteStream(file);
  buffer_.clear();
  offset_ = 0;
  line_ = 1;
  continues_ = false;
  if (Fill(kByteOrderMark.size()) && buffer_.starts_with(kByteOrderMark)) {
    buffer_.clear();
    offset_ = static_cast<int64_t>(kByteOrderMark.size());
  }
  if (config_.validation_tail > 0) {
    // The small constant keeps an exact product, such as (1 - 0.8) * 10, from being rounded down.
    const double head = (1 - config_.validation_tail) * static_cast<double>(TextBytes(file));
    tail_offset_ = static_cast<int64_t>(head + 1e-6);
    in_tail_ = offset_ >= tail_offset_;
  }
  return true;
}

bool TextChunker::Fill(size_t target) {
  size_t size = buffer_.size();
  buffer_.resize(std::max(size, target));
  while (size < target) {
    const size_t got = stream_->Read(buffer_.data() + size, target - size);
    size += got;
    if (got == 0) break;
  }
  buffer_.resize(size);
  return size >= target;
}

std::optional<size_t> TextChunker::FindCut() const {
  switch (mode()) {
    case DocumentMode::kLine:
    case DocumentMode::kRecord: {
      const size_t newline = buffer_.rfind('\n');
      return newline == std::string::npos ? std::nullopt : std::optional(newline + 1);
    }
    case DocumentMode::kBlankLines:
      return AfterLastBlankLine(buffer_, continues_);
    case DocumentMode::kFile:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<size_t> TextChunker::FindTail() const {
  const int64_t end = offset_ + static_cast<int64_t>(buffer_.size());
  if (config_.validation_tail == 0 || in_tail_ || end <= tail_offset_) return std::nullopt;
  const auto from = static_cast<size_t>(std::max<int64_t>(tail_offset_ - offset_, 0));
  if (mode() == DocumentMode::kFile) return CharacterStartFrom(buffer_, from);
  return LineStartFrom(buffer_, from, mode() == DocumentMode::kBlankLines, continues_);
}

TextChunk TextChunker::Emit(size_t length, bool leaves_open) {
  TextChunk chunk{.file = &files_[next_file_ - 1],
                  .documents = mode(),
                  .split = {},
                  .offset = offset_,
                  .first_line = line_,
                  .continues = continues_,
                  .leaves_open = leaves_open,
                  .disk_bytes = finished_disk_bytes_ + stream_->disk_bytes(),
                  .text = {}};
  std::string rest = buffer_.substr(length);
  buffer_.resize(length);
  chunk.text = std::exchange(buffer_, std::move(rest));
  offset_ += static_cast<int64_t>(length);
  line_ += std::count(chunk.text.begin(), chunk.text.end(), '\n');
  continues_ = leaves_open;
  if (config_.validation_tail > 0) {
    chunk.split = in_tail_ ? Split::kValidation : Split::kTrain;
    in_tail_ = in_tail_ || (!continues_ && offset_ >= tail_offset_);
  }
  return chunk;
}

std::optional<TextChunk> TextChunker::Next() {
  size_t target = static_cast<size_t>(config_.chunk_bytes);
  while (true) {
    if (stream_ == nullptr && !OpenNextFile()) return std::nullopt;
    const bool ends = !Fill(target);
    if (const std::optional<size_t> tail = FindTail()) return Emit(*tail, false);
    if (ends) {
      TextChunk last = Emit(buffer_.size(), false);
      finished_disk_bytes_ += stream_->disk_bytes();
      stream_.reset();
      return last;
    }
    if (const std::optional<size_t> cut = FindCut()) return Emit(*cut, false);
    if (config_.allow_pieces && mode() != DocumentMode::kRecord) {
      const size_t length = PieceLength(buffer_);
      if (length >= static_cast<size_t>(kSplitHashBytes)) return Emit(length, true);
    }
    HL_CHECK_AS(ExitCode::kData, buffer_.size() <= static_cast<size_t>(config_.max_document_bytes),
                files_[next_file_ - 1].path.string(), ": the document that starts at byte ",
                offset_, " (line ", line_, ") is longer than --max-document-bytes ",
                config_.max_document_bytes, " (", HumanBytes(config_.max_document_bytes),
                "). Raise --max-document-bytes",
                mode() == DocumentMode::kRecord
                    ? "."
                    : ", or cut the text into shorter documents with --documents blank_lines or "
                      "--documents line.");
    target = 2 * buffer_.size();
  }
}

}  // namespace halflife::data
