#include "ckpt/slice_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "ckpt/collective.h"
#include "ckpt/damage.h"
#include "ckpt/nan_search.h"

namespace halflife::ckpt {
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
