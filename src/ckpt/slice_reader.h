// A load of a step over all ranks: every stored block is read and verified once, by one rank, and
// its elements go to the ranks whose slices they are in. Any number of ranks can load the files of
// any other.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/state.h"
#include "ckpt/step_files.h"
#include "core/error.h"
#include "core/log.h"
#include "dist/communicator.h"

namespace halflife::ckpt {

// Who reads which stored blocks of a step, and who needs them. The data bytes of all files form one
// range, which is divided equally among the ranks. Each rank reads and verifies the blocks that
// begin in its part, in rounds, and sends every other rank the elements of that rank's slice. Every
// block is thus read once for any number of ranks that saved or load.
//
// The plan follows from the manifest and the layout, so all ranks compute the same plan without a
// message. In each round, the pieces that rank a sends to rank b are those that b expects from a,
// in the same order.
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

constexpr uint64_t kRoundBytes = 64ull << 20;  // that a rank reads between two exchanges

// Borrows its arguments. All functions are collective, and rank r of the group has slice r.
class SliceReader {
 public:
  SliceReader(const std::filesystem::path& step_dir, const Manifest& manifest,
              const ArenaView& arena, dist::Communicator& comm, uint64_t round_bytes = kRoundBytes);

  // Fills the slice: what is stored, verified block by block; zeros where nothing is (padding, and
  // the optimizer state of a step without one). All ranks throw the same error of StepFiles, or
  // DamageError for a NaN in main. Reading is attempted several times before an I/O error counts.
  void Read();

  uint64_t bytes_read() const { return files_.bytes_read(); }

 private:
  void ClearSlice() const;
  void ReadRound(int round);
  void ExchangeRound(int round);

  const ArenaView& arena_;
  dist::Communicator& comm_;
  const ScatterPlan plan_;
  const StepFiles files_;
  const std::unique_ptr<char[]> block_;       // one block
  std::vector<std::vector<float>> outgoing_;  // of the round, by rank
  size_t next_read_ = 0, next_receive_ = 0;   // positions in the plan
};

// Returns the result of `action`, which reads from storage. If it throws Error kCheckpointIo, tries
// up to three times, because a stalled mount may come back. What it reads is verified in any case.
template <typename Action>
auto WithRetries(const Action& action) {
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    try {
      return action();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kCheckpointIo || attempt == kAttempts) throw;
      HL_WARN("ckpt", "reading failed, attempt ", attempt, " of ", kAttempts, ": ", error.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(100 << attempt));
    }
  }
}

}  // namespace halflife::ckpt
