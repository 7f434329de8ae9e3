// The folder of a sweep: the locations of its files, and the state of each run.
//
//   sweep.textproto        the sweep of the last call
//   datasets/NAME/         the result of `halflife prepare`; NAME.prepare contains its arguments
//   recipes/TRIAL.textproto
//   runs/TRIAL/            the output of `halflife train --run`
//   logs/TRIAL.log         stdout and stderr of all attempts
//   status/TRIAL.json      and TRIAL.lock, held by the sweep that runs the trial
//   results.csv, summary.csv, figure.svg
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/files.h"

namespace halflife::sweep {

enum class TrialState { kPending, kRunning, kStopped, kFailed, kFinished };
const char* NameOf(TrialState state);  // "pending", ...

struct TrialStatus {
  TrialState state = TrialState::kPending;
  int exit_code = 0;    // The last attempt's. 128 + N: it was ended by signal N.
  int attempts = 0;     // Number of attempts that were started.
  double seconds = 0;   // Time of all attempts.
  std::string message;  // Why the last attempt failed. Empty if it did not.
};

bool IsThere(const std::filesystem::path& path);  // False also if the path cannot be checked.

class SweepFolder {
 public:
  explicit SweepFolder(std::filesystem::path path) : path_(std::move(path)) {}

  // Creates the folders. Throws kEnvironment if that fails.
  void Make() const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path sweep_file() const { return path_ / "sweep.textproto"; }
  std::filesystem::path datasets() const { return path_ / "datasets"; }
  std::filesystem::path dataset_words(const std::string& dataset) const;
  std::filesystem::path recipe(const std::string& trial) const;
  std::filesystem::path run(const std::string& trial) const;
  std::filesystem::path log(const std::string& trial) const;
  std::filesystem::path dataset_log(const std::string& dataset) const;

  // A run with a DONE file is finished regardless of its stored status, because it may have been
  // trained by hand. A stored kRunning is the state that the last sweep left, which may have been
  // killed.
  TrialStatus Status(const std::string& trial) const;
  void SetStatus(const std::string& trial, const TrialStatus& status) const;

  // Locks a trial until the result is closed. Only one sweep can hold the lock, also across
  // machines. Returns nullopt if another sweep holds it. On file systems without locks, every sweep
  // gets it.
  std::optional<Fd> Lock(const std::string& trial) const;

  static bool Is(const std::filesystem::path& path);  // True if the folder contains a sweep.

 private:
  std::filesystem::path status(const std::string& trial) const;
  std::filesystem::path path_;
};

// Returns the last line of the log that reports an error, from byte `begin` on, or else the last
// line. Empty if there are no lines.
std::string LastWords(const std::filesystem::path& log, uint64_t begin = 0);

}  // namespace halflife::sweep
