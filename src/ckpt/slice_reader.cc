#include "ckpt/slice_reader.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "ckpt/damage.h"
#include "ckpt/nan_search.h"
#include "ckpt/step_files.h"

namespace halflife::ckpt {

SliceReader::SliceReader(const std::filesystem::path& step_dir, const Manifest& manifest,
                         const ArenaView& arena, int slice)
    : step_dir_(step_dir), manifest_(manifest), arena_(arena), slice_(slice) {}

void SliceReader::Read() const {
  ClearSlice();
  const StepFiles files(step_dir_, manifest_);
  BlockCursor cursor(files);
  int last_file = -1;
  for (const Piece& piece : Plan()) {
    if (piece.fragment->file != last_file) files.CheckHeader(piece.fragment->file);
    last_file = piece.fragment->file;
    cursor.Copy(*piece.tensor, *piece.fragment, piece.begin, piece.end, piece.out);
    if (piece.fragment->array == kMainArray) CheckNoNan(piece);
  }
}

void SliceReader::ClearSlice() const {
  for (const ArenaArray& array : arena_.arrays) {
    for (const dist::Bucket& bucket : arena_.layout->buckets()) {
      const auto range = arena_.layout->SliceOf(bucket, slice_);
      std::fill_n(
          arena_.place(array, {.arena_begin = range.arena_begin, .slice_begin = range.slice_begin}),
          range.count, 0.0f);
    }
  }
}

// The pieces have the order of the files' bytes. Counts the elements, to check that each element of
// the slice is in exactly one piece.
std::vector<SliceReader::Piece> SliceReader::Plan() const {
  std::map<std::string, const TensorEntry*> by_name;
  for (const TensorEntry& tensor : manifest_.tensors) by_name[tensor.name] = &tensor;
  std::vector<Piece> pieces;
  for (const ArenaArray& array : arena_.arrays) {
    for (const dist::Fragment& range : arena_.layout->SliceFragments(slice_)) {
      const TensorEntry& tensor = *by_name.at(arena_.layout->specs()[range.param].name);
      if (array.name != kMainArray && !tensor.has(array.name)) continue;
      const int64_t planned = PlanRange(tensor, array, range, &pieces);
      HL_CHECK(planned == range.end - range.begin, "planned ", planned, " of ",
               range.end - range.begin, " elements of ", tensor.name);
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tuple(a.fragment->file, a.fragment->offset, a.begin) <
           std::tuple(b.fragment->file, b.fragment->offset, b.begin);
  });
  return pieces;
}

int64_t SliceReader::PlanRange(const TensorEntry& tensor, const ArenaArray& array,
                               const dist::Fragment& range, std::vector<Piece>* pieces) const {
  int64_t planned = 0;
  for (const StoredFragment& fragment : tensor.fragments) {
    const int64_t begin = std::max(range.begin, fragment.begin);
    const int64_t end = std::min(range.end, fragment.end);
    if (fragment.array != array.name || begin >= end) continue;
    pieces->push_back(
        {&tensor, &fragment, begin, end, arena_.place(array, range) + (begin - range.begin)});
    planned += end - begin;
  }
  return planned;
}

void SliceReader::CheckNoNan(const Piece& piece) {
  const int64_t count = piece.end - piece.begin;
  const int64_t at = FindNan(piece.out, count);
  CheckDamage(at == count, "main/", piece.tensor->name, " holds NaN at element ", piece.begin + at);
}

}  // namespace halflife::ckpt
