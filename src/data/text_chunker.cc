#include "data/text_chunker.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/human.h"
#include "data/utf8.h"

namespace halflife::data {
namespace {

constexpr std::string_view kWhitespace = " \t\r\n";

DocumentMode Resolve(DocumentMode mode, TextFormat format) {
  if (mode != DocumentMode::kAuto) return mode;
  return format == TextFormat::kText ? DocumentMode::kBlankLine : DocumentMode::kRecord;
}

// The start of the line after the last blank line; nothing where there is none. The first line of a
// chunk that continues a document is the rest of a line, which is never blank.
std::optional<size_t> AfterLastBlankLine(std::string_view text, bool continues) {
  size_t end = text.rfind('\n');
  while (end != std::string_view::npos) {
    const size_t before = end == 0 ? std::string_view::npos : text.rfind('\n', end - 1);
    if (before == std::string_view::npos && continues) return std::nullopt;
    const size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::string_view line = text.substr(begin, end - begin);
    if (line.find_first_not_of(kBlanks) == std::string_view::npos) return end + 1;
    end = before;
  }
  return std::nullopt;
}

// Where a piece of a long document may end: after a whole character that is not blank, so that
// whether a line is blank never depends on where the pieces were cut.
size_t PieceLength(std::string_view text) {
  text.remove_suffix(IncompleteUtf8Tail(text));
  const size_t last = text.find_last_not_of(kWhitespace);
  return last == std::string_view::npos ? 0 : last + 1;
}

}  // namespace

const char* Name(DocumentMode mode) {
  constexpr const char* kNames[] = {"auto", "blank-line", "file", "record"};
  return kNames[static_cast<int>(mode)];
}

void RequireUtf8(TextChunk& chunk, bool replace) {
  const size_t bad = FindInvalidUtf8(chunk.text);
  if (bad == std::string::npos) return;
  const auto line =
      chunk.first_line +
      std::count(chunk.text.begin(), chunk.text.begin() + static_cast<int64_t>(bad), '\n');
  HL_CHECK_AS(ExitCode::kData, replace, chunk.file->path.string(), ": byte ",
              chunk.offset + static_cast<int64_t>(bad), " of the text (line ", line,
              ") is not valid UTF-8; convert the file, or have `halflife prepare --invalid-utf8 "
              "replace` put U+FFFD there");
  chunk.text = ReplaceInvalidUtf8(chunk.text);
}

TextChunker::TextChunker(const std::vector<InputFile>& files, const ChunkerConfig& config)
    : files_(files), config_(config) {
  for (const InputFile& file : files) {
    const bool records = Resolve(config.documents, file.format) == DocumentMode::kRecord;
    HL_CHECK_AS(ExitCode::kUsage, records == (file.format != TextFormat::kText), "--documents ",
                Name(config.documents), " does not fit ", file.path.string(),
                ": .jsonl files hold records, .txt files hold blank-line blocks or one document "
                "each; use --documents auto");
  }
}

DocumentMode TextChunker::mode() const {
  return Resolve(config_.documents, files_[next_file_ - 1].format);
}

bool TextChunker::OpenNextFile() {
  if (next_file_ == files_.size()) return false;
  stream_ = OpenByteStream(files_[next_file_++]);
  buffer_.clear();
  offset_ = 0;
  line_ = 1;
  continues_ = false;
  if (Fill(kByteOrderMark.size()) && buffer_.starts_with(kByteOrderMark)) {
    buffer_.clear();
    offset_ = static_cast<int64_t>(kByteOrderMark.size());
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
    case DocumentMode::kRecord: {
      const size_t newline = buffer_.rfind('\n');
      return newline == std::string::npos ? std::nullopt : std::optional(newline + 1);
    }
    case DocumentMode::kBlankLine:
      return AfterLastBlankLine(buffer_, continues_);
    default:
      return std::nullopt;  // a file is one document
  }
}

TextChunk TextChunker::Emit(size_t length, bool leaves_open) {
  TextChunk chunk{.file = &files_[next_file_ - 1],
                  .documents = mode(),
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
  return chunk;
}

std::optional<TextChunk> TextChunker::Next() {
  size_t target = static_cast<size_t>(config_.chunk_bytes);
  while (true) {
    if (stream_ == nullptr && !OpenNextFile()) return std::nullopt;
    if (!Fill(target)) {
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
                "); raise that limit, or cut the text at blank lines with --documents blank-line");
    target = 2 * buffer_.size();
  }
}

}  // namespace halflife::data
