// The folder of a sweep: where everything lies, and how each run stands.
//
//   sweep.textproto        the sweep as it was asked for last
//   datasets/NAME/         what `halflife prepare` made, and NAME.prepare: how it was told to
//   recipes/TRIAL.textproto
//   runs/TRIAL/            what `halflife train --run` writes
//   logs/TRIAL.log         what it said, attempt after attempt
//   status/TRIAL.json      and TRIAL.lock, held by the sweep that runs it
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
  int exit_code = 0;    // of the last attempt; 128 + N: signal N ended it
  int attempts = 0;     // that were started
  double seconds = 0;   // of all attempts
  std::string message;  // the last attempt's last words, where it failed
};

bool IsThere(const std::filesystem::path& path);  // what cannot be looked at is not

class SweepFolder {
 public:
  explicit SweepFolder(std::filesystem::path path) : path_(std::move(path)) {}

  // Error kEnvironment: cannot be made.
  void Make() const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path sweep_file() const { return path_ / "sweep.textproto"; }
  std::filesystem::path datasets() const { return path_ / "datasets"; }
  std::filesystem::path dataset_words(const std::string& dataset) const;
  std::filesystem::path recipe(const std::string& trial) const;
  std::filesystem::path run(const std::string& trial) const;
  std::filesystem::path log(const std::string& trial) const;
  std::filesystem::path dataset_log(const std::string& dataset) const;

  // A run that is done is finished, whatever its status says: it may have been trained by hand.
  // `running` is what the last sweep left, which may have been killed.
  TrialStatus Status(const std::string& trial) const;
  void SetStatus(const std::string& trial, const TrialStatus& status) const;

  // Held until it is closed, and by one sweep at a time, on whatever machine; nothing: by another.
  // Where files cannot be locked anybody may have it.
  std::optional<Fd> Lock(const std::string& trial) const;

  static bool Is(const std::filesystem::path& path);  // holds a sweep

 private:
  std::filesystem::path status(const std::string& trial) const;
  std::filesystem::path path_;
};

// The last line of the file, from byte `begin` on, that speaks of an error, else the last line;
// empty: no words.
std::string LastWords(const std::filesystem::path& log, uint64_t begin = 0);

}  // namespace halflife::sweep
