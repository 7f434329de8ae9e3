#include "ckpt/stored_layout.h"

#include <algorithm>

#include "ckpt/damage.h"

namespace halflife::ckpt {
namespace {

ShardPiece PieceOf(const std::string& array, const TensorEntry& tensor, int64_t begin,
                   int64_t end) {
  return {.array = array, .tensor = tensor.name, .shape = tensor.shape, .begin = begin, .end = end};
}

// Calls visit(tensor index, begin, end) for each range of a tensor in a slice, in arena order.
template <typename Visit>
void ForSliceRanges(const Manifest& manifest, int slice, const Visit& visit) {
  int64_t bucket_begin = 0;
  for (const StoredBucket& bucket : manifest.buckets) {
    const int64_t length = (bucket.end - bucket_begin) / manifest.num_slices;
    const int64_t slice_begin = bucket_begin + slice * length, slice_end = slice_begin + length;
    for (size_t i = 0; i < bucket.tensors.size(); ++i) {
      const int64_t offset = bucket.offsets[i];
      const int64_t begin = std::max(slice_begin, offset);
      const int64_t end = std::min(slice_end, offset + manifest.tensors[bucket.tensors[i]].count());
      if (begin < end) visit(bucket.tensors[i], begin - offset, end - offset);
    }
    bucket_begin = bucket.end;
  }
}

// Checks the values that the derivation uses as indices and divisors.
void CheckBuckets(const Manifest& manifest, const std::string& where) {
  std::vector<int> uses(manifest.tensors.size());
  int64_t end = 0;
  for (const StoredBucket& bucket : manifest.buckets) {
    CheckDamage(bucket.end >= end && (bucket.end - end) % manifest.num_slices == 0, where,
                ": a bucket ends at element ", bucket.end, ", which does not split into ",
                manifest.num_slices, " slices");
    CheckDamage(bucket.tensors.size() == bucket.offsets.size(), where, ": a bucket has ",
                bucket.tensors.size(), " tensors and ", bucket.offsets.size(), " offsets");
    for (size_t i = 0; i < bucket.tensors.size(); ++i) {
      const int tensor = bucket.tensors[i];
      CheckDamage(static_cast<size_t>(tensor) < uses.size(), where, ": a bucket has tensor ",
                  tensor, " of ", uses.size());
      const int64_t count = manifest.tensors[tensor].count(), offset = bucket.offsets[i];
      ++uses[tensor];
      CheckDamage(count >= 0 && offset >= end && offset <= bucket.end - count, where, ": tensor '",
                  manifest.tensors[tensor].name, "' does not fit in its bucket");
      end = offset + count;
    }
    end = bucket.end;
  }
  for (size_t tensor = 0; tensor < uses.size(); ++tensor)
    CheckDamage(uses[tensor] == 1, where, ": tensor '", manifest.tensors[tensor].name, "' is in ",
                uses[tensor], " buckets");
}

// Returns the index of each slice's file.
std::vector<int> FilesOfSlices(const Manifest& manifest, const std::string& where) {
  CheckDamage(static_cast<size_t>(manifest.num_slices) == manifest.files.size(), where, ": ",
              manifest.files.size(), " files of ", manifest.num_slices, " slices");
  std::vector<int> files(manifest.files.size(), -1);
  for (size_t i = 0; i < files.size(); ++i) {
    const FileEntry& file = manifest.files[i];
    CheckDamage(0 <= file.slice && file.slice < manifest.num_slices && files[file.slice] == -1,
                where, ": file ", file.name, " has slice ", file.slice, " of ",
                manifest.num_slices);
    files[file.slice] = static_cast<int>(i);
  }
  return files;
}

}  // namespace

std::vector<StoredBucket> BucketsOf(const dist::ParameterLayout& layout) {
  std::vector<StoredBucket> buckets;
  for (const dist::Bucket& bucket : layout.buckets()) {
    StoredBucket& stored = buckets.emplace_back();
    stored.end = bucket.end;
    stored.tensors = bucket.params;
    for (const int param : bucket.params) stored.offsets.push_back(layout.offset(param));
  }
  return buckets;
}

ShardPlan PlanStoredSlice(const Manifest& manifest, int slice) {
  ShardPlan plan;
  for (const ArrayEntry& array : manifest.arrays) {
    ForSliceRanges(manifest, slice, [&](int tensor, int64_t begin, int64_t end) {
      plan.pieces.push_back(PieceOf(array.name, manifest.tensors[tensor], begin, end));
    });
    if (slice != 0) continue;
    for (const TensorEntry& tensor : manifest.tensors)
      if (tensor.count() == 0) plan.pieces.push_back(PieceOf(array.name, tensor, 0, 0));
  }
  return plan;
}

void DeriveFragments(Manifest* manifest, const std::string& where) {
  CheckBuckets(*manifest, where);
  const std::vector<int> files = FilesOfSlices(*manifest, where);
  for (TensorEntry& tensor : manifest->tensors) tensor.fragments.clear();
  for (int slice = 0; slice < manifest->num_slices; ++slice) {
    uint64_t offset = 0, num_blocks = 0;
    const auto add = [&](const ArrayEntry& array, TensorEntry& tensor, int64_t begin, int64_t end) {
      const StoredFragment& fragment =
          tensor.fragments.emplace_back(StoredFragment{.array = array.name,
                                                       .begin = begin,
                                                       .end = end,
                                                       .file = files[slice],
                                                       .offset = offset,
                                                       .first_block = num_blocks,
                                                       .dtype = array.dtype});
      offset += FragmentBytes(fragment);
      num_blocks += NumBlocks(FragmentBytes(fragment), manifest->block_bytes);
    };
    for (const ArrayEntry& array : manifest->arrays) {
      ForSliceRanges(*manifest, slice, [&](int tensor, int64_t begin, int64_t end) {
        add(array, manifest->tensors[tensor], begin, end);
      });
      if (slice != 0) continue;
      for (TensorEntry& tensor : manifest->tensors)
        if (tensor.count() == 0) add(array, tensor, 0, 0);
    }
    manifest->files[files[slice]].num_blocks = num_blocks;
  }
}

void CheckDerivedHeaders(const Manifest& manifest, const std::string& where) {
  for (const FileEntry& file : manifest.files) {
    const std::string header =
        MakeHeader(PlanStoredSlice(manifest, file.slice),
                   {.step = manifest.state.step, .rank = file.rank, .attempt = manifest.attempt});
    CheckDamage(header.size() == file.data_offset && HashBytes(header) == file.header_hash, where,
                ": the header of ", file.name, " is not that of slice ", file.slice);
  }
}

}  // namespace halflife::ckpt
