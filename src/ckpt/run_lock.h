// Allows one writer per run folder. It holds flock on run.lock for the whole run, which the kernel
// releases however the process ends. A random token in owner.json serves file systems on which
// flock does not work across hosts.
//
//   // Rank 0 only. Throws Error kEnvironment if the folder is in use.
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
  // The error is "run directory RUN is in use by host:pid since ...". Also checks that RUN/ckpt is
  // writable (create, fsync, rename, delete), so that a read-only folder fails within seconds
  // instead of at the first save.
  static RunLock Acquire(const std::filesystem::path& run_dir, const Options& options);
  RunLock(RunLock&&) = default;
  RunLock& operator=(RunLock&&) = default;

  // Throws Error kEnvironment if another job has replaced owner.json, and kCheckpointIo if it
  // cannot be read.
  void CheckStillOwner() const;

 private:
  RunLock(std::filesystem::path run_dir, Fd fd, std::string token);
  std::filesystem::path run_dir_;
  Fd fd_;
  std::string token_;
};

}  // namespace halflife::ckpt
