// A load of a step over all ranks: every stored block is read and verified once, by one rank, and
// its elements go to the ranks whose slices they are in. Any number of ranks can load the files of
// any other.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/scatter_plan.h"
#include "ckpt/state.h"
#include "ckpt/step_files.h"
#include "core/error.h"
#include "core/log.h"
#include "dist/communicator.h"

namespace halflife::ckpt {

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
