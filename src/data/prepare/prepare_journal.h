// A file next to the output of a `prepare` of text, with the chunks that have been encoded. If the
// run is interrupted or killed, the next one reads these chunks instead of tokenizing their text
// again. It then writes all shards from the beginning, so the dataset has the same bytes as that of
// an uninterrupted run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/files.h"
#include "data/prepare/document_encoder.h"

namespace halflife::data {

class PrepareJournal {
 public:
  // Opens the journal of `out`, or creates it. `identity` names everything that the chunks depend
  // on. A chunk that was cut off, and what follows it, is removed. Throws Error kUsage if the
  // file is not a journal or belongs to another identity, or if another process is using it.
  PrepareJournal(const std::filesystem::path& out, const std::string& identity);
  // Deletes the journal of `out` once the dataset is complete.
  static void Remove(const std::filesystem::path& out);

  // Returns true if a chunk of an earlier run is left.
  bool has_next() const { return next_.has_value(); }
  // Returns the next chunk of an earlier run, without its file and disk_bytes.
  EncodedChunk Next();
  // Adds a chunk of this run. All chunks of earlier runs must have been taken.
  void Append(const EncodedChunk& chunk);

 private:
  // Reads a record and returns its payload, or nothing if it is not whole.
  std::optional<std::string> ReadRecord();
  void WriteRecord(const std::string& payload);
  void ReadAhead();

  std::filesystem::path path_;
  Fd fd_;
  std::optional<std::string> next_;  // The payload of the next chunk.
  uint64_t at_ = 0;                  // The end of the last record that was read or written.
};

}  // namespace halflife::data
