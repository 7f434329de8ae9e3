// Who reads which stored blocks of a step, and who needs them. The data bytes of all files form one
// range, which is divided equally among the ranks. Each rank reads and verifies the blocks that
// begin in its part, in rounds, and sends every other rank the elements of that rank's slice. Every
// block is thus read once for any number of ranks that saved or load.
//
// The plan follows from the manifest and the layout, so all ranks compute the same plan without a
// message. In each round, the pieces that rank a sends to rank b are those that b expects from a,
// in the same order.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/state.h"

namespace halflife::ckpt {

class ScatterPlan {
 public:
  // A range of the elements of a tensor, and the rank whose slice it is in.
  struct Piece {
    int rank = 0;
    int64_t begin = 0, end = 0;  // elements of the tensor
    dist::Fragment place = {};   // where it begins in the arena
  };
  struct Read {
    int round = 0;
    const TensorEntry* tensor = nullptr;
    const StoredFragment* fragment = nullptr;
    uint64_t block = 0;
    int64_t begin = 0, end = 0;  // the block's elements of the tensor
    bool first_of_file = false;
  };
  struct Receive {
    int round = 0, source = 0;
    uint64_t position = 0;  // of its block, in the bytes of all files
    const TensorEntry* tensor = nullptr;
    const ArenaArray* array = nullptr;
    int64_t begin = 0, end = 0;  // elements of the tensor
    dist::Fragment place = {};
  };

  // Borrows its arguments, and `arena` only for its layout and the names of its arrays. A rank
  // reads at most about `round_bytes` in a round.
  ScatterPlan(const Manifest& manifest, const ArenaView& arena, int rank, uint64_t round_bytes);

  int num_rounds() const { return num_rounds_; }
  // In the order of the bytes.
  const std::vector<Read>& reads() const { return reads_; }
  // The pieces that this rank needs from others, by round, source and position. Pieces that a rank
  // reads for itself are not among them.
  const std::vector<Receive>& receives() const { return receives_; }
  // Divides a block among the ranks, in the order of its elements.
  std::vector<Piece> PiecesOf(const Read& read) const;

 private:
  void PlanReads();
  void PlanReceives();
  uint64_t PositionOf(const StoredFragment& fragment, uint64_t block) const;
  int RankOf(uint64_t position) const { return static_cast<int>(position / part_bytes_); }
  int RoundOf(uint64_t position) const {
    return static_cast<int>(position % part_bytes_ / round_bytes_);
  }

  const Manifest& manifest_;
  const ArenaView& arena_;
  const int rank_;
  const uint64_t round_bytes_;
  uint64_t part_bytes_ = 1;  // of the data bytes, per rank
  int num_rounds_ = 0;
  std::vector<uint64_t> file_begins_;  // position of each file's data
  std::map<std::string, int> params_;  // index of each tensor in the layout
  std::vector<int> bucket_of_;         // by parameter
  std::vector<Read> reads_;
  std::vector<Receive> receives_;
};

}  // namespace halflife::ckpt
