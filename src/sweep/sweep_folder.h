// The folder of a sweep: where everything lies, and how each run stands.
//
//   sweep.textproto        the sweep as it was asked for last
//   datasets/NAME/         what `halflife prepare` made
//   recipes/TRIAL.textproto
//   runs/TRIAL/            what `halflife train --run` writes
//   logs/TRIAL.log         what it said, attempt after attempt
//   status/TRIAL.json
//   results.csv, summary.csv, figure.svg
#pragma once

#include <filesystem>
#include <string>

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
  std::filesystem::path recipe(const std::string& trial) const;
  std::filesystem::path run(const std::string& trial) const;
  std::filesystem::path log(const std::string& trial) const;
  std::filesystem::path dataset_log(const std::string& dataset) const;

  // A run that is done is finished, whatever its status says: it may have been trained by hand.
  // `running` is what the last sweep left, which may have been killed.
  TrialStatus Status(const std::string& trial) const;
  void SetStatus(const std::string& trial, const TrialStatus& status) const;

  static bool Is(const std::filesystem::path& path);  // holds a sweep

 private:
  std::filesystem::path status(const std::string& trial) const;
  std::filesystem::path path_;
};

// The last line of the file that speaks of an error, else the last line; empty: no words.
std::string LastWords(const std::filesystem::path& log);

}  // namespace halflife::sweep
