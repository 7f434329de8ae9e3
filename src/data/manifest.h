// A dataset's manifest: what the folder holds, with a hash for every byte of it.
// On disk: 8 bytes "HLDATA\x01\n", uint64 LE payload length, the payload
// (proto/halflife/dataset.proto), xxh3-128 of all before. The frame is needed because protobuf
// accepts a message that was cut at a field's border.
//
//   AtomicWriteFile(folder / kManifestName, FrameManifest(manifest), ExitCode::kData);
//   const Manifest again = ReadManifest(folder / kManifestName);
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/shard_layout.h"

namespace halflife::data {

struct SplitRecord {
  SplitInfo info;
  std::vector<ShardRecord> shards;
};

struct Manifest {
  std::string tokenizer_kind;
  int vocab_size = 0;
  int eos_id = 0;
  std::vector<FileRecord> tokenizer_files;  // names below tokenizer/
  SplitRecord train, validation;

  // How the text was cut.
  std::string documents;
  std::string field;
  double validation_fraction = 0;
  uint64_t split_seed = 0;
  bool replace_invalid_utf8 = false;
  bool validation_input = false;

  Hash128 hash;  // the frame's; set by ReadManifest
};

std::string FrameManifest(const Manifest& manifest);
std::string ManifestText(const Manifest& manifest);  // for people
// Error kData for a missing file, a damaged frame, another version, or counts that contradict each
// other.
Manifest ReadManifest(const std::filesystem::path& path);

// The frame's hash: the last 16 bytes.
Hash128 FrameHash(std::string_view framed);

}  // namespace halflife::data
