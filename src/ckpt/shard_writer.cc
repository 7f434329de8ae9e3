#include "ckpt/shard_writer.h"

#include <algorithm>
#include <map>
#include <memory>

#include "ckpt/direct_writer.h"
#include "ckpt/nan_search.h"
#include "ckpt/stored_layout.h"
#include "core/error.h"
#include "core/fault.h"

namespace halflife::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockElements = kBlockBytes / sizeof(float);

std::string EntryName(const ShardPiece& piece) {
  const bool whole = piece.begin == 0 && piece.end == CountElements(piece.shape);
  const std::string name = Concat(piece.array, "/", piece.tensor);
  return whole ? name : Concat(name, "@", piece.begin);
}

std::vector<int64_t> EntryShape(const ShardPiece& piece) {
  const bool whole = piece.begin == 0 && piece.end == CountElements(piece.shape);
  return whole ? piece.shape : std::vector<int64_t>{piece.end - piece.begin};
}

void CheckNoNan(const ShardPiece& piece, int64_t begin, const float* data, int64_t count) {
  const int64_t at = FindNan(data, count);
  HL_CHECK_AS(ExitCode::kNonFinite, at == count, piece.array, "/", piece.tensor,
              " holds NaN at element ", begin + at,
              "; such a step could not be resumed and is not saved");
}

std::string TableOf(const std::vector<Hash128>& hashes) {
  std::string table;
  for (const Hash128 hash : hashes) {
    const uint64_t words[] = {hash.hi, hash.lo};
    table.append(reinterpret_cast<const char*>(words), sizeof words);
  }
  return table;
}

// Hashes the bytes that it writes, block by block and as a whole.
class ShardFile {
 public:
  ShardFile(const fs::path& path, const std::string& header, uint64_t data_bytes)
      : file_(path, header.size() + data_bytes) {
    entry_.name = path.filename().string();
    entry_.data_offset = header.size();
    entry_.header_hash = HashBytes(header);
    HL_FAULT_POINT("ckpt.p1.write", ExitCode::kCheckpointIo);
    Append(header.data(), header.size());
  }

  // `check` gets parts of the block, each immediately before it is hashed and copied, so that it
  // stays in a core's cache for all three.
  template <typename Check>
  Hash128 AppendBlock(const float* data, int64_t count, const Check& check) {
    constexpr int64_t kPart = (int64_t{128} << 10) / sizeof(float);
    HL_FAULT_POINT("ckpt.p1.write", ExitCode::kCheckpointIo);
    StreamHash block;
    for (int64_t begin = 0; begin < count; begin += kPart) {
      const int64_t part = std::min(kPart, count - begin);
      const size_t bytes = static_cast<size_t>(part) * sizeof(float);
      check(begin, part);
      Append(data + begin, bytes);
      block.Update(data + begin, bytes);
    }
    blocks_.push_back(block.Digest());
    return blocks_.back();
  }

  uint64_t data_bytes() const { return file_.bytes() - entry_.data_offset; }

  FileEntry Finish() {
    const std::string table = TableOf(blocks_);
    Append(table.data(), table.size());
    entry_.table_hash = HashBytes(table);
    entry_.num_blocks = blocks_.size();
    file_.Finish();
    entry_.bytes = file_.bytes();
    entry_.hash = whole_.Digest();
    return entry_;
  }

 private:
  void Append(const void* data, size_t bytes) {
    file_.Append(data, bytes);
    whole_.Update(data, bytes);
  }

  DirectWriter file_;
  StreamHash whole_;
  std::vector<Hash128> blocks_;
  FileEntry entry_;
};

// Writes one piece in blocks. A piece without data is filled in through `buffer`.
StoredFragment WritePiece(const ShardPlan& plan, const ShardPiece& piece, float* buffer,
                          ShardFile& file) {
  StoredFragment fragment{.array = piece.array,
                          .begin = piece.begin,
                          .end = piece.end,
                          .file = 0,
                          .offset = file.data_bytes(),
                          .block_hashes = {}};
  for (int64_t begin = piece.begin; begin < piece.end; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, piece.end - begin);
    const float* data = piece.data == nullptr ? buffer : piece.data + (begin - piece.begin);
    if (piece.data == nullptr) plan.fill(piece, begin, begin + count, buffer);
    fragment.block_hashes.push_back(file.AppendBlock(data, count, [&](int64_t first, int64_t part) {
      if (piece.array == kMainArray) CheckNoNan(piece, begin + first, data + first, part);
    }));
  }
  return fragment;
}

}  // namespace

uint64_t ShardPlan::data_bytes() const {
  uint64_t bytes = 0;
  for (const ShardPiece& piece : pieces) {
    bytes += static_cast<uint64_t>(piece.end - piece.begin) * sizeof(float);
  }
  return bytes;
}

std::string ShardName(int rank) {
  const std::string digits = std::to_string(rank);
  return Concat("rank_", std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0'), digits,
                ".safetensors");
}

ShardPlan PlanShard(const dist::ParameterLayout& layout, const std::vector<std::string>& arrays,
                    int rank) {
  ShardPlan plan;
  for (const std::string& array : arrays) {
    for (const dist::Fragment& fragment : layout.SliceFragments(rank)) {
      const dist::ParamSpec& spec = layout.specs()[fragment.param];
      plan.pieces.push_back({.array = array,
                             .tensor = spec.name,
                             .shape = spec.shape,
                             .begin = fragment.begin,
                             .end = fragment.end,
                             .arena_begin = fragment.arena_begin,
                             .slice_begin = fragment.slice_begin});
    }
    if (rank != 0) continue;
    for (const dist::ParamSpec& spec : layout.specs()) {
      if (spec.count() > 0) continue;
      plan.pieces.push_back({.array = array, .tensor = spec.name, .shape = spec.shape});
    }
  }
  return plan;
}

ShardPlan PlanShard(const ArenaView& arena, int rank) {
  std::vector<std::string> names;
  for (const ArenaArray& array : arena.arrays) names.push_back(array.name);
  ShardPlan plan = PlanShard(*arena.layout, names, rank);
  for (ShardPiece& piece : plan.pieces)
    piece.data = arena.place(arena.array(piece.array),
                             {.arena_begin = piece.arena_begin, .slice_begin = piece.slice_begin});
  return plan;
}

std::string MakeHeader(const ShardPlan& plan, const ShardLabel& label) {
  std::vector<safetensors::Entry> entries;
  uint64_t at = 0, num_blocks = 0;
  for (const ShardPiece& piece : plan.pieces) {
    const uint64_t bytes = static_cast<uint64_t>(piece.end - piece.begin) * sizeof(float);
    entries.push_back({EntryName(piece), StoredDType::kF32, EntryShape(piece), at, at + bytes});
    at += bytes;
    num_blocks += NumBlocks(bytes, kBlockBytes);
  }
  const uint64_t table = kHashBytes * num_blocks;
  entries.push_back({kHashesName, StoredDType::kU8, {static_cast<int64_t>(table)}, at, at + table});
  return safetensors::BuildHeader(entries,
                                  {{"magic", "halflife-ckpt"},
                                   {"format_version", std::to_string(kFormatVersion)},
                                   {"step", std::to_string(label.step)},
                                   {"rank", std::to_string(label.rank)},
                                   {"attempt", label.attempt}},
                                  kDataAlignment);
}

Manifest WriteShard(const fs::path& dir, const ShardPlan& plan, const ShardLabel& label) {
  uint64_t num_blocks = 0;
  for (const ShardPiece& piece : plan.pieces)
    num_blocks +=
        NumBlocks(static_cast<uint64_t>(piece.end - piece.begin) * sizeof(float), kBlockBytes);
  ShardFile file(dir / ShardName(label.rank), MakeHeader(plan, label),
                 plan.data_bytes() + kHashBytes * num_blocks);
  const bool fills = std::any_of(plan.pieces.begin(), plan.pieces.end(),
                                 [](const ShardPiece& piece) { return piece.data == nullptr; });
  const auto buffer = std::make_unique_for_overwrite<float[]>(fills ? kBlockElements : 0);
  Manifest part;
  part.block_bytes = kBlockBytes;
  std::map<std::string, size_t> index;  // of part.tensors
  for (const ShardPiece& piece : plan.pieces) {
    const auto [at, is_new] = index.emplace(piece.tensor, part.tensors.size());
    if (is_new) part.tensors.push_back({.name = piece.tensor, .shape = piece.shape});
    if (part.FindArray(piece.array) == nullptr) part.arrays.push_back({.name = piece.array});
    part.tensors[at->second].fragments.push_back(WritePiece(plan, piece, buffer.get(), file));
  }
  part.files.push_back(file.Finish());
  part.files[0].rank = part.files[0].slice = label.rank;
  part.attempt = label.attempt;
  part.total_bytes = part.files[0].bytes;
  return part;
}

std::vector<TensorEntry> TensorEntries(const dist::ParameterLayout& layout) {
  std::vector<TensorEntry> entries;
  for (const dist::ParamSpec& spec : layout.specs()) {
    entries.push_back({.name = spec.name,
                       .shape = spec.shape,
                       .aliases = spec.aliases,
                       .weight_decay = spec.weight_decay,
                       .fp32_region = spec.region == dist::Region::kFp32});
  }
  return entries;
}

std::vector<ArrayEntry> ArrayEntries(const dist::ParameterLayout& layout,
                                     const std::vector<std::string>& names) {
  std::vector<ArrayEntry> entries;
  for (const std::string& name : names)
    entries.push_back({.name = name, .elements = layout.num_parameters()});
  return entries;
}

void SetFiles(std::vector<FileEntry> files, const dist::ParameterLayout& layout,
              Manifest* manifest) {
  manifest->files = std::move(files);
  manifest->total_bytes = 0;
  for (const FileEntry& file : manifest->files) manifest->total_bytes += file.bytes;
  manifest->buckets = BucketsOf(layout);
  manifest->num_slices = layout.num_slices();
  manifest->block_bytes = kBlockBytes;
  DeriveFragments(manifest, "the new step");
}

}  // namespace halflife::ckpt
