// Scans of long rows by several heads side by side, a stretch at a time. Heads are neighbours in
// each token's row: a head that ran to the row's end alone would have its pages and lines come from
// memory in pieces, as far apart as the row is wide, and the next head would fetch them again. With
// 8 heads of 64 channels in fp32 that is 1.13 to 1.2 x the time of decay attention from 16,384
// tokens on.
//
// Pieces are [num_sequences, H, kinds]: those of a thread, `together` heads of one sequence and
// kind, make a group. Bits depend on neither, as what a head hands from stretch to stretch is its
// state.
//
//   const SideBySide groups({num_heads, num_pieces, /*kinds=*/1}, stretch_chunks, rows_are_long);
//   Parallel("a kernel", groups.count(), bytes, [&](int64_t group, void* scratch) {
//     for (const Stretch& part : groups.Stretches(begin, end, /*descending=*/false))
//       for (int i = 0; i < groups.together(); ++i) Scan(groups.Piece(group, i), part, scratch);
//   });
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace halflife::kernels::cpu {

// What all heads of a stretch have of their operands and outputs forward; a backward meets twice as
// much. It stays in a last cache until the last of the heads has come to it.
constexpr int64_t kStretchBytes = 8 << 20;
// Chunks of a stretch, a multiple of `multiple`, of tokens of so many bytes over all heads.
constexpr int StretchChunks(int64_t token_bytes, int chunk_size, int multiple) {
  const int64_t bytes = token_bytes * chunk_size * multiple;
  return static_cast<int>(std::max<int64_t>(1, kStretchBytes / std::max<int64_t>(1, bytes))) *
         multiple;
}
constexpr int kNoStretches = 1 << 30;  // chunks: each head goes to the row's end

struct Stretch {
  int begin, end;    // chunks
  bool first, last;  // in the order of the scan
};

struct Pieces {
  int num_heads = 1;
  int64_t num_pieces = 0;
  int kinds = 1;  // of a head: its segments, or the passes of a backward
};

class SideBySide {
 public:
  // As many heads together as leave every thread as much to do; one where it is not worth it.
  SideBySide(const Pieces& pieces, int stretch_chunks, bool worth);
  int together() const { return together_; }
  int64_t count() const { return pieces_.num_pieces / together_; }
  int64_t Piece(int64_t group, int i) const;  // the i-th of a group
  // Of chunks [begin, end), one at least, all where a thread has one head; descending: from the end
  // back.
  std::vector<Stretch> Stretches(int begin, int end, bool descending) const;

 private:
  Pieces pieces_;
  int stretch_chunks_;
  int together_ = 1;
};

// What the heads of a group hand from stretch to stretch: a state and a norm each, behind a
// thread's scratch.
class Carries {
 public:
  // `norm_bytes` may be 0.
  Carries(size_t scratch_bytes, size_t state_bytes, size_t norm_bytes)
      : offset_((scratch_bytes + 63) / 64 * 64),
        state_bytes_(state_bytes),
        norm_bytes_(norm_bytes) {}
  size_t bytes(int heads) const { return offset_ + static_cast<size_t>(heads) * a_head(); }
  void* State(void* scratch, int head) const {
    return static_cast<std::byte*>(scratch) + offset_ + static_cast<size_t>(head) * a_head();
  }
  void* Norm(void* scratch, int head) const {  // null: there is none
    return norm_bytes_ == 0 ? nullptr
                            : static_cast<std::byte*>(State(scratch, head)) + state_bytes_;
  }

 private:
  size_t a_head() const { return state_bytes_ + norm_bytes_; }
  size_t offset_, state_bytes_, norm_bytes_;
};

}  // namespace halflife::kernels::cpu
