// The manifest of a step as plain types. The manifest decides what a step contains: its files, and
// the positions of the tensors' element ranges in them. In memory it lists them as fragments. On
// disk it has the buckets of the arena from which they follow (schema 3, see stored_layout.h), or
// the fragments themselves with a hash per block (schema 2). Only manifest.cc uses protobuf.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/safetensors.h"
#include "ckpt/state.h"

namespace halflife::ckpt {

// The schema that this program writes, and the oldest one that it reads.
constexpr uint32_t kSchemaVersion = 3, kOldestSchemaVersion = 2;
// The bytes of a fragment that are covered by one hash: of the steps that this program writes, of
// those of schema 2, and the most that it reads.
constexpr uint64_t kBlockBytes = 1ull << 20, kListedBlockBytes = 16ull << 20;
constexpr uint64_t kMaxBlockBytes = 16ull << 20;
constexpr uint64_t kMaxManifestBytes = 1ull << 30;
constexpr char kManifestName[] = "manifest.pb";

struct FileEntry {
  std::string name;  // in the step's folder
  int rank = 0;
  uint64_t bytes = 0;
  uint64_t data_offset = 0;
  Hash128 hash;         // of the whole file
  Hash128 header_hash;  // of [0, data_offset)
  // In schema 3:
  int slice = -1;           // of Manifest::num_slices
  Hash128 table_hash;       // of the table of block hashes at the end of the file
  uint64_t num_blocks = 0;  // derived; the table has as many hashes
};

struct ArrayEntry {
  std::string name;  // "main", "optim/m", ...
  StoredDType dtype = StoredDType::kF32;
  int64_t elements = 0;  // over all tensors
};

struct StoredFragment {
  std::string array = kMainArray;
  int64_t begin = 0, end = 0;             // elements of the flattened tensor
  int file = 0;                           // index into Manifest::files
  uint64_t offset = 0;                    // bytes from the file's data_offset
  std::vector<Hash128> block_hashes;      // empty if the table of the file has them,
  uint64_t first_block = 0;               // from this entry on
  StoredDType dtype = StoredDType::kF32;  // of its array
};

struct TensorEntry {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::string> aliases;
  bool weight_decay = false;
  bool fp32_region = false;
  bool frozen = false;
  std::vector<StoredFragment> fragments;

  int64_t count() const { return CountElements(shape); }
  bool has(std::string_view array) const;
};

// Consecutive tensors of the arena of the run that saved the step.
struct StoredBucket {
  int64_t end = 0;               // elements of the arena; it begins where the one before ends
  std::vector<int> tensors;      // indices into Manifest::tensors, in arena order
  std::vector<int64_t> offsets;  // first element of each tensor in the arena
};

struct Manifest {
  StepState state;
  std::string attempt;
  int64_t unix_ms = 0;  // for information only
  std::vector<std::string> hosts;
  std::vector<FileEntry> files;
  std::vector<ArrayEntry> arrays;    // the main weights first
  std::vector<TensorEntry> tensors;  // in registration order
  uint64_t total_bytes = 0;          // of the shard files
  // The source of the fragments. Empty: they are listed (schema 2).
  std::vector<StoredBucket> buckets = {};
  int num_slices = 0;  // equal parts of every bucket, each in one file
  uint64_t block_bytes = kListedBlockBytes;

  const TensorEntry* Find(const std::string& name) const;    // null: it does not exist
  const ArrayEntry* FindArray(std::string_view name) const;  // null: it does not exist
  std::vector<std::string> array_names() const;
};

uint64_t FragmentBytes(const StoredFragment& fragment);
uint64_t NumBlocks(uint64_t fragment_bytes, uint64_t block_bytes);

std::string EncodeManifest(const Manifest& manifest);

// `where` begins all messages. Throws DamageError if the frame, the hash or the contents are not
// those of any writer. Throws Error kNoUsableCheckpoint if a newer halflife wrote the manifest
// (unknown schema, feature or enum value), or if its schema is older than kOldestSchemaVersion.
Manifest DecodeManifest(std::string_view bytes, const std::string& where);

// Throws DamageError unless the fragments cover every element of every tensor and array exactly
// once, the arrays have as many elements as their list says, and every file's data is covered
// exactly once.
void CheckCoverage(const Manifest& manifest, const std::string& where);

// Returns the manifest as protobuf text, for people. `bytes` are from EncodeManifest.
std::string ManifestText(std::string_view bytes);

// Returns the bytes of STEP/manifest.pb, at most kMaxManifestBytes. Throws DamageError if it is
// missing or too long, and Error kCheckpointIo if it cannot be read.
std::string ReadManifestBytes(const std::filesystem::path& step_dir);

}  // namespace halflife::ckpt
