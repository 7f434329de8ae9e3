// A run's folder: config, tokenizer, logs, metrics, the lock and the words of a rank that failed.
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
#include "data/dataset.h"
#include "dist/rank_context.h"

namespace halflife::train {

class RunFolder {
 public:
  struct Options {
    bool steal_lock = false;
  };
  // Collective. Rank 0 creates the folder, checks that it is writable and takes the lock. On
  // failure all ranks throw rank 0's error: kUsage where `path` is a dataset or a checkpoint step,
  // in which nothing is then written, else kEnvironment. The destructor removes a folder that this
  // start created, unless Keep was called.
  static RunFolder Open(const std::filesystem::path& path, dist::RankContext& context,
                        const Options& options);

  RunFolder(RunFolder&&) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();

  const std::filesystem::path& path() const { return path_; }
  // 8 hex digits, new at every start, equal on all ranks.
  const std::string& attempt() const { return attempt_; }
  // DONE is there.
  bool finished() const;
  // Nothing of an earlier run was there: equal on all ranks.
  bool is_new() const { return is_new_; }
  // The start has succeeded: from now on the folder holds a run.
  void Keep() { created_.clear(); }

  std::filesystem::path LogFile(int rank) const;
  std::filesystem::path FlightFolder() const { return FlightFolderOf(path_); }
  // Where a run's folder has the ranks' flight records, while it runs and after a failure.
  static std::filesystem::path FlightFolderOf(const std::filesystem::path& run) {
    return run / "flight";
  }

  // Rank 0 only.
  void WriteConfig(const std::string& text) const;
  void CopyTokenizer(const data::Dataset& dataset) const;
  void WriteHeartbeat(int64_t step, const char* phase) const;
  void WriteDone(int64_t step) const;
  void RemoveDone() const;  // the run goes on after all: more steps, or an older checkpoint
  void CheckStillOwner() const { lock_->CheckStillOwner(); }

 private:
  RunFolder() = default;
  void Create();

  std::filesystem::path path_;
  std::string attempt_;
  bool is_new_ = false;
  // Rank 0: folders that this start made, the outermost first; empty once they are to stay.
  std::vector<std::filesystem::path> created_;
  std::optional<ckpt::RunLock> lock_;  // rank 0
};

// The first rank that fails creates abort/FIRST with its cause. The other ranks report that cause
// instead of their own error, which is a consequence of it. Returns the line to log.
std::string RecordAbort(const std::filesystem::path& run_dir, int rank, const std::string& cause,
                        bool is_consequence);

}  // namespace halflife::train
