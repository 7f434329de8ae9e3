// One writer per run folder: flock on run.lock for the whole run (released by the kernel however
// the process ends), and a random token in owner.json against file systems where flock does not
// reach across hosts.
//
//   // rank 0 only; Error kEnvironment when in use
//   const RunLock lock = RunLock::Acquire(run_dir, {.steal = false});
#pragma once

#include <filesystem>
#include <string>

#include "core/files.h"

namespace halflife::ckpt {

class RunLock {
 public:
  struct Options {
    // Take over from a dead job. Requires a stale heartbeat or a dead pid on this host.
    bool steal = false;
    // The fix that is named in the error if another job holds the lock.
    std::string remedy =
        "wait for it, use another --run, or take over from a dead job with --steal-lock";
  };
  // "run directory RUN is in use by host:pid since ...". Also probes that RUN/ckpt is writable
  // (create, fsync, rename, delete), so that a read-only folder fails in seconds and not at the
  // first save.
  static RunLock Acquire(const std::filesystem::path& run_dir, const Options& options);
  RunLock(RunLock&&) = default;
  RunLock& operator=(RunLock&&) = default;

  // Error kEnvironment if another job has replaced owner.json, kCheckpointIo if it cannot be read.
  void CheckStillOwner() const;

 private:
  RunLock(std::filesystem::path run_dir, Fd fd, std::string token);
  std::filesystem::path run_dir_;
  Fd fd_;
  std::string token_;
};

}  // namespace halflife::ckpt
