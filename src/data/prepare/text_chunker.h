// Splits input files into chunks of about 1 MiB at document boundaries, so that chunks can be
// processed independently. The reader only finds the boundaries. All expensive work is done on
// whole chunks, in parallel.
//
// A chunk grows, up to max_document_bytes, if a document is longer than it. With `allow_pieces`
// (for tokenizers that work byte by byte), a long document is split into pieces instead, and its
// length has no limit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/input_files.h"

namespace halflife::data {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // may be at the start of a file
constexpr std::string_view kBlanks = " \t\r";                // the characters of a blank line

enum class DocumentMode : uint8_t { kFile, kLine, kBlankLines, kRecord };
const char* Name(DocumentMode mode);  // file, line, blank_lines, record

struct ChunkerConfig {
  // How .txt files are split into documents: kFile, kLine or kBlankLines. Other files are split
  // into their records.
  DocumentMode documents = DocumentMode::kFile;
  bool allow_pieces = false;
  int64_t chunk_bytes = 1 << 20;
  int64_t max_document_bytes = int64_t{256} << 20;
  // The share of each .txt file, at its end, that is used for validation. The tail begins at byte
  // floor((1 - share) * size) of the text, or at the first allowed position after it:
  // - kFile splits the document in two, before the next character.
  // - kLine and kBlankLines split no document: the tail begins with the next document.
  //
  // With 0 the chunker does not choose the split.
  double validation_tail = 0;
};

struct TextChunk {
  const InputFile* file = nullptr;
  DocumentMode documents = DocumentMode::kFile;
  std::optional<Split> split;  // the split of all its documents; set only with validation_tail
  int64_t offset = 0;          // position of its first byte in the file's decompressed text
  int64_t first_line = 1;      // line number of its first line
  bool continues = false;      // begins within the document that the previous chunk left open
  bool leaves_open = false;    // ends within a document
  uint64_t disk_bytes = 0;     // bytes read from all files so far, for progress reports
  std::string text;
};

// Requires that the chunk is valid UTF-8, and that the escapes of JSON records are characters, not
// halves of surrogate pairs. Otherwise replaces invalid bytes and escapes by U+FFFD if `replace` is
// set, or throws Error kData with their position.
void RequireUtf8(TextChunk& chunk, bool replace);

// Only this many bytes at the beginning of a document decide its split, so that the split is known
// with the first piece.
constexpr int64_t kSplitHashBytes = 64 << 10;

class TextChunker {
 public:
  // `files` is borrowed. Throws Error kUsage if files of records are combined with a
  // validation_tail.
  TextChunker(const std::vector<InputFile>& files, const ChunkerConfig& config);
  // Returns the next chunk, or nothing after the last. Throws Error kData for unreadable files and
  // documents that are too long.
  std::optional<TextChunk> Next();

 private:
  bool OpenNextFile();
  bool Fill(size_t target);  // returns false at the end of the file
  std::optional<size_t> FindCut() const;
  // Returns where the training part of the file ends in the buffer, or nothing if that position is
  // not in the buffer.
  std::optional<size_t> FindTail() const;
  TextChunk Emit(size_t length, bool leaves_open);
  DocumentMode mode() const;

  const std::vector<InputFile>& files_;
  const ChunkerConfig config_;
  size_t next_file_ = 0;
  std::unique_ptr<ByteStream> stream_;
  uint64_t finished_disk_bytes_ = 0;
  // State of the open file:
  std::string buffer_;
  int64_t offset_ = 0;
  int64_t line_ = 1;
  bool continues_ = false;
  int64_t tail_offset_ = 0;  // earliest start of the validation tail
  bool in_tail_ = false;
};

}  // namespace halflife::data
