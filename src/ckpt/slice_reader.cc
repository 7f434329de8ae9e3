#include "ckpt/slice_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>

#include "ckpt/collective.h"
#include "ckpt/damage.h"
#include "ckpt/nan_search.h"

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

namespace {

void CheckNoNan(const ScatterPlan::Read& read, const float* values) {
  if (read.fragment->array != kMainArray) return;
  const int64_t count = read.end - read.begin, at = FindNan(values, count);
  CheckDamage(at == count, "main/", read.tensor->name, " holds NaN at element ", read.begin + at);
}

}  // namespace

SliceReader::SliceReader(const std::filesystem::path& step_dir, const Manifest& manifest,
                         const ArenaView& arena, dist::Communicator& comm, uint64_t round_bytes)
    : arena_(arena),
      comm_(comm),
      plan_(manifest, arena, comm.rank(), round_bytes),
      files_(step_dir, manifest),
      block_(std::make_unique_for_overwrite<char[]>(manifest.block_bytes)),
      outgoing_(static_cast<size_t>(comm.size())) {}

void SliceReader::Read() {
  ClearSlice();
  for (int round = 0; round < plan_.num_rounds(); ++round) {
    OnEveryRank(comm_, {"ckpt_read", round}, [&] {
      const size_t first = next_read_;
      WithRetries([&] {
        next_read_ = first;
        ReadRound(round);
      });
      return std::string();
    });
    ExchangeRound(round);
  }
}

void SliceReader::ClearSlice() const {
  for (const ArenaArray& array : arena_.arrays) {
    for (const dist::Bucket& bucket : arena_.layout->buckets()) {
      const auto range = arena_.layout->SliceOf(bucket, comm_.rank());
      std::fill_n(
          arena_.place(array, {.arena_begin = range.arena_begin, .slice_begin = range.slice_begin}),
          range.count, 0.0f);
    }
  }
}

// Copies this rank's own pieces to their place, and keeps those of other ranks for the exchange.
void SliceReader::ReadRound(int round) {
  for (std::vector<float>& values : outgoing_) values.clear();
  for (; next_read_ < plan_.reads().size(); ++next_read_) {
    const ScatterPlan::Read& read = plan_.reads()[next_read_];
    if (read.round != round) break;
    if (read.first_of_file) files_.CheckHeader(read.fragment->file);
    files_.ReadBlock(*read.tensor, *read.fragment, read.block, block_.get());
    const auto* const values = reinterpret_cast<const float*>(block_.get());
    CheckNoNan(read, values);
    const ArenaArray& array = arena_.array(read.fragment->array);
    for (const ScatterPlan::Piece& piece : plan_.PiecesOf(read)) {
      const float* const from = values + (piece.begin - read.begin);
      const int64_t count = piece.end - piece.begin;
      if (piece.rank == comm_.rank()) {
        std::copy_n(from, count, arena_.place(array, piece.place));
      } else {
        outgoing_[piece.rank].insert(outgoing_[piece.rank].end(), from, from + count);
      }
    }
  }
}

// In the s-th of W - 1 exchanges, every rank sends to the rank that is s after it. Both sides know
// from the plan which pairs have something to exchange.
void SliceReader::ExchangeRound(int round) {
  const auto size = static_cast<size_t>(comm_.size());
  const size_t first = next_receive_;
  std::vector<std::vector<float>> incoming(size);
  std::vector<int64_t> counts(size);
  for (; next_receive_ < plan_.receives().size(); ++next_receive_) {
    const ScatterPlan::Receive& receive = plan_.receives()[next_receive_];
    if (receive.round != round) break;
    counts[receive.source] += receive.end - receive.begin;
  }
  for (size_t shift = 1; shift < size; ++shift) {
    const size_t rank = static_cast<size_t>(comm_.rank());
    const size_t to = (rank + shift) % size, from = (rank + size - shift) % size;
    incoming[from].resize(static_cast<size_t>(counts[from]));
    std::vector<float>& outgoing = outgoing_[to];
    comm_
        .SendRecv(Ref(outgoing.data(), std::ssize(outgoing)),
                  outgoing.empty() ? -1 : static_cast<int>(to),
                  Ref(incoming[from].data(), counts[from]),
                  counts[from] == 0 ? -1 : static_cast<int>(from), {"ckpt_scatter", round}, nullptr)
        .WaitHost();
    outgoing = {};
  }
  std::vector<size_t> used(size);
  for (size_t i = first; i < next_receive_; ++i) {
    const ScatterPlan::Receive& receive = plan_.receives()[i];
    const int64_t count = receive.end - receive.begin;
    std::copy_n(incoming[receive.source].data() + used[receive.source], count,
                arena_.place(*receive.array, receive.place));
    used[receive.source] += static_cast<size_t>(count);
  }
}

}  // namespace halflife::ckpt
