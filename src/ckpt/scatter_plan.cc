#include "ckpt/scatter_plan.h"

#include <algorithm>
#include <tuple>

namespace halflife::ckpt {

ScatterPlan::ScatterPlan(const Manifest& manifest, const ArenaView& arena, int rank,
                         uint64_t round_bytes)
    : manifest_(manifest),
      arena_(arena),
      rank_(rank),
      round_bytes_(round_bytes),
      bucket_of_(dist::BucketsOfParameters(*arena.layout)) {
  uint64_t total = 0;
  for (const FileEntry& file : manifest.files) {
    file_begins_.push_back(total);
    total += file.bytes - file.data_offset;
  }
  const auto num_ranks = static_cast<uint64_t>(arena.layout->num_slices());
  part_bytes_ = std::max<uint64_t>((total + num_ranks - 1) / num_ranks, 1);
  num_rounds_ = static_cast<int>((part_bytes_ + round_bytes - 1) / round_bytes);
  for (size_t i = 0; i < arena.layout->specs().size(); ++i)
    params_[arena.layout->specs()[i].name] = static_cast<int>(i);
  PlanReads();
  PlanReceives();
}

uint64_t ScatterPlan::PositionOf(const StoredFragment& fragment, uint64_t block) const {
  return file_begins_[fragment.file] + fragment.offset + block * manifest_.block_bytes;
}

void ScatterPlan::PlanReads() {
  const uint64_t begin = static_cast<uint64_t>(rank_) * part_bytes_, end = begin + part_bytes_;
  for (const TensorEntry& tensor : manifest_.tensors) {
    for (const StoredFragment& fragment : tensor.fragments) {
      const uint64_t bytes = FragmentBytes(fragment), first = PositionOf(fragment, 0);
      const bool wanted = std::ranges::any_of(
          arena_.arrays, [&](const ArenaArray& array) { return array.name == fragment.array; });
      if (!wanted || first >= end || first + bytes <= begin) continue;
      // The first block that begins in the part of this rank.
      const uint64_t skipped = first >= begin ? 0 : begin - first;
      uint64_t block = (skipped + manifest_.block_bytes - 1) / manifest_.block_bytes;
      for (; block < NumBlocks(bytes, manifest_.block_bytes); ++block) {
        const uint64_t position = PositionOf(fragment, block);
        if (position >= end) break;
        const auto size = SizeOf(fragment.dtype);
        const auto from =
            fragment.begin + static_cast<int64_t>(block * manifest_.block_bytes / size);
        const auto count = static_cast<int64_t>(manifest_.block_bytes / size);
        reads_.push_back({.round = RoundOf(position),
                          .tensor = &tensor,
                          .fragment = &fragment,
                          .block = block,
                          .begin = from,
                          .end = std::min(fragment.end, from + count),
                          .first_of_file = fragment.offset == 0 && block == 0});
      }
    }
  }
  std::ranges::sort(reads_, {},
                    [this](const Read& read) { return PositionOf(*read.fragment, read.block); });
}

std::vector<ScatterPlan::Piece> ScatterPlan::PiecesOf(const Read& read) const {
  const dist::ParameterLayout& layout = *arena_.layout;
  const int param = params_.at(read.tensor->name);
  const dist::Bucket& bucket = layout.buckets()[bucket_of_[param]];
  const int64_t length = (bucket.end - bucket.begin) / layout.num_slices();
  std::vector<Piece> pieces;
  for (int64_t begin = read.begin; begin < read.end;) {
    const int64_t position = layout.offset(param) + begin;
    const int slice = static_cast<int>((position - bucket.begin) / length);
    const auto range = layout.SliceOf(bucket, slice);
    const int64_t in_slice = position - range.arena_begin;
    const int64_t end = std::min(read.end, begin + range.count - in_slice);
    pieces.push_back({.rank = slice,
                      .begin = begin,
                      .end = end,
                      .place = {.param = param,
                                .begin = begin,
                                .end = end,
                                .arena_begin = position,
                                .slice_begin = range.slice_begin + in_slice}});
    begin = end;
  }
  return pieces;
}

void ScatterPlan::PlanReceives() {
  std::map<std::string, const TensorEntry*> by_name;
  for (const TensorEntry& tensor : manifest_.tensors) by_name[tensor.name] = &tensor;
  for (const ArenaArray& array : arena_.arrays) {
    for (const dist::Fragment& range : arena_.layout->SliceFragments(rank_)) {
      const TensorEntry& tensor = *by_name.at(arena_.layout->specs()[range.param].name);
      int64_t planned = 0;
      for (const StoredFragment& fragment : tensor.fragments) {
        const int64_t begin = std::max(range.begin, fragment.begin);
        const int64_t end = std::min(range.end, fragment.end);
        if (fragment.array != array.name || begin >= end) continue;
        planned += end - begin;
        const auto block_elements =
            static_cast<int64_t>(manifest_.block_bytes / SizeOf(fragment.dtype));
        for (int64_t at = begin; at < end;) {
          const int64_t block = (at - fragment.begin) / block_elements;
          const int64_t stop = std::min(end, fragment.begin + (block + 1) * block_elements);
          const uint64_t position = PositionOf(fragment, static_cast<uint64_t>(block));
          if (RankOf(position) != rank_)
            receives_.push_back({.round = RoundOf(position),
                                 .source = RankOf(position),
                                 .position = position,
                                 .tensor = &tensor,
                                 .array = &array,
                                 .begin = at,
                                 .end = stop,
                                 .place = {.param = range.param,
                                           .begin = at,
                                           .end = stop,
                                           .arena_begin = range.arena_begin + at - range.begin,
                                           .slice_begin = range.slice_begin + at - range.begin}});
          at = stop;
        }
      }
      HL_CHECK(planned == range.end - range.begin || !tensor.has(array.name), "planned ", planned,
               " of ", range.end - range.begin, " elements of ", tensor.name);
    }
  }
  std::ranges::sort(receives_, {}, [](const Receive& receive) {
    return std::tuple(receive.round, receive.source, receive.position, receive.begin);
  });
}

}  // namespace halflife::ckpt
