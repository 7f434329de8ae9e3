// The folder of a run: config, tokenizer, logs, metrics, the lock and the message of a failed rank.
//   RUN/ config.textproto  metrics.jsonl  events/  logs/r00000.log  tokenizer/  ckpt/  abort/FIRST
//   flight/r00000.flight  heartbeat.json  run.lock  owner.json  DONE
//
//   const RunFolder folder = RunFolder::Open(path, context, {.steal_lock = false});
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/run_lock.h"
#include "ckpt/state.h"
#include "data/dataset.h"
#include "dist/rank_context.h"

namespace halflife::train {

class RunFolder {
 public:
  struct Options {
    bool steal_lock = false;
  };
  // Collective. Rank 0 creates the folder, checks that it is writable and takes the lock. On
  // failure, all ranks throw rank 0's error: kUsage if `path` is a dataset or a checkpoint step
  // (nothing is then written to it), otherwise kEnvironment. The destructor removes a folder that
  // this start created, unless Keep was called.
  static RunFolder Open(const std::filesystem::path& path, dist::RankContext& context,
                        const Options& options);

  RunFolder(RunFolder&&) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();

  const std::filesystem::path& path() const { return path_; }
  // 8 hex digits, new at every start and equal on all ranks.
  const std::string& attempt() const { return attempt_; }
  // Returns whether the file DONE exists.
  bool finished() const;
  // Returns whether the folder did not exist before this start. Equal on all ranks.
  bool is_new() const { return is_new_; }
  // Call when the start has succeeded. The folder then contains a run.
  void Keep() { created_.clear(); }

  std::filesystem::path LogFile(int rank) const;
  std::filesystem::path FlightFolder() const { return FlightFolderOf(path_); }
  // Returns the folder of the ranks' flight records, which exists during a run and after a failure.
  static std::filesystem::path FlightFolderOf(const std::filesystem::path& run) {
    return run / "flight";
  }

  // Rank 0 only.
  void WriteConfig(const std::string& text) const;
  // Returns false if the folder has no tokenizer. Throws Error kUsage if it has that of another
  // dataset, so that the folder belongs to another run.
  bool HasTokenizerOf(const data::Dataset& dataset) const;
  void CopyTokenizer(const data::Dataset& dataset) const;  // Throws as HasTokenizerOf.
  void WriteHeartbeat(int64_t step, const char* phase) const;
  void WriteDone(int64_t step) const;
  // Call if the run continues: with more steps, or from an older checkpoint.
  void RemoveDone() const;
  void CheckStillOwner() const { lock_->CheckStillOwner(); }

 private:
  RunFolder() = default;
  void Create();

  std::filesystem::path path_;
  std::string attempt_;
  bool is_new_ = false;
  // Rank 0: the folders that this start created, outermost first. Empty after Keep.
  std::vector<std::filesystem::path> created_;
  std::optional<ckpt::RunLock> lock_;  // Rank 0.
};

// Creates abort/FIRST with the cause if this rank is the first that fails. The other ranks report
// that cause instead of their own error, which is a consequence of it. Returns the line to log.
std::string RecordAbort(const std::filesystem::path& run_dir, int rank, const std::string& cause,
                        bool is_consequence);

// Returns the versions of the program and of the loaded libraries, if they report them. Checkpoints
// store them for comparison of runs. cuda and nccl are empty in a build without CUDA. The store
// adds those of the compiler and of protobuf.
ckpt::Versions VersionsHere();

}  // namespace halflife::train
