// A dataset's manifest: the content of the folder, with a hash of every byte. On disk it consists
// of 8 bytes "HLDATA\x01\n", the payload length as uint64 LE, the payload
// (proto/halflife/dataset.proto), and the xxh3-128 of everything before it. The frame is needed
// because protobuf accepts a message that was truncated at a field boundary.
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
  std::string tokenizer_kind;  // empty for rows of a task
  int vocab_size = 0;
  int eos_id = 0;                           // -1 for rows of a task
  std::vector<FileRecord> tokenizer_files;  // names are relative to tokenizer/
  SplitRecord train, validation;
  SplitRecord test;  // only for rows

  // How text was split into documents; unused for rows.
  std::string documents;
  std::string field;
  double validation_fraction = 0;  // 0 if the split was chosen in another way
  // The share of each text file; 0 if the split was chosen in another way.
  double validation_tail = 0;
  uint64_t split_seed = 0;
  bool replace_invalid_utf8 = false;
  bool validation_input = false;
  // The shards are links to token files (kInPlaceVersion).
  bool in_place = false;

  // The generator of the rows; unused for text.
  int64_t row_len = 0;  // tokens per row; 0 for text
  std::string generator;
  uint32_t generator_version = 0;
  std::vector<std::pair<std::string, std::string>> parameters;
  RowLabels labels = RowLabels::kNone;
  std::vector<std::string> classes = {};

  bool has_rows() const { return row_len > 0; }
  // Returns the exclusive upper bound of the labels; 0 for text.
  int num_labels() const {
    if (!has_rows()) return 0;
    return labels == RowLabels::kClasses ? static_cast<int>(classes.size()) : vocab_size;
  }
  const SplitRecord& of(Split split) const {
    return split == Split::kTrain ? train : split == Split::kValidation ? validation : test;
  }

  Hash128 hash;  // hash of the frame; set by ReadManifest
};

// Writes the tokenizer into a dataset's folder and its description into the manifest.
void SaveTokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder,
                   Manifest& manifest);

std::string FrameManifest(const Manifest& manifest);
std::string ManifestText(const Manifest& manifest);  // for people to read
// Writes both forms into a dataset's folder. Returns the hash of the frame.
Hash128 WriteManifest(const Manifest& manifest, const std::filesystem::path& folder);
// Throws Error kData for a missing file, a damaged frame, another version, or counts that
// contradict each other.
Manifest ReadManifest(const std::filesystem::path& path);

// "train-00000.h5"
std::string ShardFileName(Split split, size_t number);

// Returns the hash in the last 16 bytes of the frame.
Hash128 FrameHash(std::string_view framed);

}  // namespace halflife::data
