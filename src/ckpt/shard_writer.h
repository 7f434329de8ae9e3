// Writes one rank's shard file: the safetensors header, its fragments, and a table with the hash of
// each block, which is computed from the bytes that are written.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/manifest.h"

namespace halflife::ckpt {

constexpr int kFormatVersion = 3;  // of the shard files' metadata
constexpr uint64_t kDataAlignment = 4096;

// One entry of the file.
struct ShardPiece {
  std::string array = kMainArray;
  std::string tensor;
  std::vector<int64_t> shape;                // of the whole tensor
  int64_t begin = 0, end = 0;                // elements; all fp32
  int64_t arena_begin = 0, slice_begin = 0;  // as in dist::Fragment
  const float* data = nullptr;  // `end - begin` values. Null: ShardPlan::fill gives them.
};

struct ShardPlan {
  std::vector<ShardPiece> pieces;
  // Gives the values of pieces without data: writes elements [begin, end) of a piece's tensor to
  // `out`.
  std::function<void(const ShardPiece&, int64_t begin, int64_t end, float* out)> fill;
  uint64_t data_bytes() const;
};

struct ShardLabel {
  uint64_t step = 0;
  int rank = 0;
  std::string attempt;
};

std::string ShardName(int rank);  // "rank_00003.safetensors"

// Returns the plan of slice `rank` of the layout, array by array, without data. Tensors without
// elements go to rank 0.
ShardPlan PlanShard(const dist::ParameterLayout& layout, const std::vector<std::string>& arrays,
                    int rank);
// The same layout, with pointers to the arena's data.
ShardPlan PlanShard(const ArenaView& arena, int rank);

// Returns the header of the file that the plan describes.
std::string MakeHeader(const ShardPlan& plan, const ShardLabel& label);

// Allocates, writes, fsyncs and closes the file. Throws Error kCheckpointIo. Throws Error
// kNonFinite if main contains a NaN, because a load would refuse such a step. Returns a manifest of
// this file and the fragments in it, with their hashes.
Manifest WriteShard(const std::filesystem::path& dir, const ShardPlan& plan,
                    const ShardLabel& label);

// Returns tensor entries without fragments, in registration order.
std::vector<TensorEntry> TensorEntries(const dist::ParameterLayout& layout);
// Returns the entries of fp32 arrays that cover every tensor.
std::vector<ArrayEntry> ArrayEntries(const dist::ParameterLayout& layout,
                                     const std::vector<std::string>& names);
// Sets the fragments of `manifest`, whose tensors and arrays are known: `files` hold the slices of
// `layout`.
void SetFiles(std::vector<FileEntry> files, const dist::ParameterLayout& layout,
              Manifest* manifest);

}  // namespace halflife::ckpt
