// Cuts input files into chunks of about 1 MiB at places where a document ends, so that chunks can
// be worked on apart. The reader only looks for such places; everything costly happens to whole
// chunks, in parallel.
//
// A document longer than a chunk makes the chunk grow, up to max_document_bytes. Where
// `allow_pieces` is set (a tokenizer that works byte by byte), it is cut into pieces instead, and
// its length has no limit.
//
//   TextChunker chunker(files, {.documents = DocumentMode::kBlankLines});
//   while (std::optional<TextChunk> chunk = chunker.Next()) ...
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_stream.h"
#include "data/dataset.h"
#include "data/input_files.h"

namespace halflife::data {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // that a file may begin with
constexpr std::string_view kBlanks = " \t\r";                // of which a blank line consists

enum class DocumentMode : uint8_t { kFile, kLine, kBlankLines, kRecord };
const char* Name(DocumentMode mode);  // file, line, blank_lines, record

struct ChunkerConfig {
  // How .txt files are cut: kFile, kLine or kBlankLines. Other files are cut into their records.
  DocumentMode documents = DocumentMode::kFile;
  bool allow_pieces = false;
  int64_t chunk_bytes = 1 << 20;
  int64_t max_document_bytes = int64_t{256} << 20;
  // The share of each .txt file that validates: its end. It begins at byte floor((1 - share) *
  // size) of the text, or at the first place after it where it can:
  // - kFile cuts the document in two, before the next character.
  // - kLine and kBlankLines cut no document: the tail begins with the next one.
  // 0: the chunker does not choose the split.
  double validation_tail = 0;
};

struct TextChunk {
  const InputFile* file = nullptr;
  DocumentMode documents = DocumentMode::kFile;
  std::optional<Split> split;  // of all its documents; only with validation_tail
  int64_t offset = 0;          // of the first byte in the file's (decompressed) text
  int64_t first_line = 1;      // its line number
  bool continues = false;      // begins inside the document that the previous chunk left open
  bool leaves_open = false;    // ends inside a document
  uint64_t disk_bytes = 0;     // read from all files so far: progress
  std::string text;
};

// UTF-8 alone is text: where the chunk holds other bytes, error kData with their place, or with
// `replace` U+FFFD in their stead.
void RequireUtf8(TextChunk& chunk, bool replace);

// A document's split is decided by at most this much of its beginning, so that it is known with the
// first piece.
constexpr int64_t kSplitHashBytes = 64 << 10;

class TextChunker {
 public:
  // `files` is borrowed. Error kUsage for files of records with a validation_tail.
  TextChunker(const std::vector<InputFile>& files, const ChunkerConfig& config);
  // Nothing after the last. Errors are kData: unreadable files, documents that are too long.
  std::optional<TextChunk> Next();

 private:
  bool OpenNextFile();
  bool Fill(size_t target);  // false at the end of the file
  std::optional<size_t> FindCut() const;
  // Where the training part of the file ends in the buffer. Nothing if the buffer does not reach
  // that place, or begins behind it.
  std::optional<size_t> FindTail() const;
  TextChunk Emit(size_t length, bool leaves_open);
  DocumentMode mode() const;

  const std::vector<InputFile>& files_;
  const ChunkerConfig config_;
  size_t next_file_ = 0;
  std::unique_ptr<ByteStream> stream_;
  uint64_t finished_disk_bytes_ = 0;
  // Of the file that is open:
  std::string buffer_;
  int64_t offset_ = 0;
  int64_t line_ = 1;
  bool continues_ = false;
  int64_t tail_offset_ = 0;  // where the validation tail may begin
  bool in_tail_ = false;
};

}  // namespace halflife::data
