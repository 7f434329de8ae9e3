// One rank's part of a load: reads its slice of each array of the arena from the fragments that
// contain it. Any world size can read the files of any other, by interval arithmetic over the
// elements of each tensor.
#pragma once

#include <filesystem>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/state.h"

namespace halflife::ckpt {

// Borrows its arguments. Throws the errors of StepFiles.
class SliceReader {
 public:
  SliceReader(const std::filesystem::path& step_dir, const Manifest& manifest,
              const ArenaView& arena, int slice);

  // Fills the slice: what is stored, verified block by block; zeros where nothing is (padding, and
  // the optimizer state of a step without one). DamageError also for a NaN in main.
  void Read() const;

 private:
  // A range of one stored fragment and its destination.
  struct Piece {
    const TensorEntry* tensor;
    const StoredFragment* fragment;
    int64_t begin, end;  // elements of the tensor
    float* out;
  };
  void ClearSlice() const;
  std::vector<Piece> Plan() const;
  int64_t PlanRange(const TensorEntry& tensor, const ArenaArray& array, const dist::Fragment& range,
                    std::vector<Piece>* pieces) const;
  static void CheckNoNan(const Piece& piece);

  const std::filesystem::path& step_dir_;
  const Manifest& manifest_;
  const ArenaView& arena_;
  int slice_;
};

}  // namespace halflife::ckpt
