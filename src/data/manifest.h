// A dataset's manifest: what the folder holds, with a hash for every byte of it.
// On disk: 8 bytes "HLDATA\x01\n", uint64 LE payload length, the payload
// (proto/halflife/dataset.proto), xxh3-128 of all before. The frame is needed because protobuf
// accepts a message that was cut at a field's border.
//
//   WriteManifest(manifest, folder);
//   const Manifest again = ReadManifest(folder / kManifestName);
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/shard_layout.h"

namespace halflife::data {

struct SplitRecord {
  SplitInfo info;
  std::vector<ShardRecord> shards;
};

struct Manifest {
  std::string tokenizer_kind;  // empty: rows of a task
  int vocab_size = 0;
  int eos_id = 0;                           // -1: rows of a task
  std::vector<FileRecord> tokenizer_files;  // names below tokenizer/
  SplitRecord train, validation;
  SplitRecord test;  // of rows alone

  // How the text was cut, without rows.
  std::string documents;
  std::string field;
  double validation_fraction = 0;  // 0 with one of the other ways to split
  double validation_tail = 0;      // of each text file
  uint64_t split_seed = 0;
  bool replace_invalid_utf8 = false;
  bool validation_input = false;

  // Of rows: what made them.
  int64_t row_len = 0;  // tokens; 0: text
  std::string generator;
  uint32_t generator_version = 0;
  std::vector<std::pair<std::string, std::string>> parameters;
  RowLabels labels = RowLabels::kNone;
  std::vector<std::string> classes = {};

  bool has_rows() const { return row_len > 0; }
  // Labels are below it.
  int num_labels() const {
    return labels == RowLabels::kClasses ? static_cast<int>(classes.size()) : vocab_size;
  }
  const SplitRecord& of(Split split) const {
    return split == Split::kTrain ? train : split == Split::kValidation ? validation : test;
  }

  Hash128 hash;  // the frame's; set by ReadManifest
};

// Writes the tokenizer below a dataset's folder, and into the manifest what it says of it.
void SaveTokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder,
                   Manifest& manifest);

std::string FrameManifest(const Manifest& manifest);
std::string ManifestText(const Manifest& manifest);  // for people
// Both, into a dataset's folder. Returns the frame's hash.
Hash128 WriteManifest(const Manifest& manifest, const std::filesystem::path& folder);
// Error kData for a missing file, a damaged frame, another version, or counts that contradict each
// other.
Manifest ReadManifest(const std::filesystem::path& path);

// The frame's hash: the last 16 bytes.
Hash128 FrameHash(std::string_view framed);

}  // namespace halflife::data
