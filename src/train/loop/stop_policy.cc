#include "train/loop/stop_policy.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "core/exit_code.h"

namespace halflife::train {
namespace {

// A signal handler can only reach globals and may only use lock-free atomics.
std::atomic<bool> requeue_flag{false}, save_flag{false}, stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void Handle(int signal_number) {
  switch (signal_number) {
    case SIGUSR1:
    case SIGTERM:
    case SIGHUP:
      requeue_flag = true;
      break;
    case SIGUSR2:
      save_flag = true;
      break;
    case SIGINT:
      if (stop_flag.exchange(true)) ::_exit(static_cast<int>(ExitCode::kInterrupted));
      break;
  }
}

}  // namespace

void StopFlags::InstallHandlers() {
  struct sigaction action {};
  action.sa_handler = Handle;
  action.sa_flags = SA_RESTART;
  for (const int signal_number : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) {
    ::sigaction(signal_number, &action, nullptr);
  }
  struct sigaction now {};  // A run under nohup outlives its terminal.
  if (::sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler != SIG_IGN)
    ::sigaction(SIGHUP, &action, nullptr);
}

bool StopFlags::requeue() { return requeue_flag; }
bool StopFlags::stop() { return stop_flag; }
bool StopFlags::TakeSave() { return save_flag.exchange(false); }

namespace {

// Time reserved for a save whose duration is not known yet.
constexpr double kMinSaveSeconds = 5;

}  // namespace

StopPolicy::StopPolicy(double time_limit_s) : time_limit_s_(time_limit_s) {}

void StopPolicy::NoteStep(double seconds) { longest_step_s_ = std::max(longest_step_s_, seconds); }

bool StopPolicy::TimeIsUp(double elapsed_s) const {
  // The work that may precede the end of the save: this step and a slower one, a validation, and
  // the save itself.
  const double ahead =
      2 * longest_step_s_ + last_validation_s_ + std::max(kMinSaveSeconds, 2 * last_save_s_);
  return time_limit_s_ > 0 && elapsed_s + ahead > time_limit_s_;
}

StepScalars StopPolicy::OwnRequests(double elapsed_s) const {
  StepScalars flags;
  flags[Scalar::kSaveAndRequeue] = StopFlags::requeue();
  flags[Scalar::kSaveAndContinue] = StopFlags::TakeSave();
  flags[Scalar::kSaveAndStop] = StopFlags::stop();
  flags[Scalar::kTimeLimit] = TimeIsUp(elapsed_s);
  return flags;
}

std::optional<ExitCode> StopPolicy::CodeOf(const StepScalars& reduced) {
  if (reduced.any(Scalar::kSaveAndStop)) return ExitCode::kInterrupted;
  if (reduced.any(Scalar::kSaveAndRequeue) || reduced.any(Scalar::kTimeLimit))
    return ExitCode::kRequeue;
  return std::nullopt;
}

}  // namespace halflife::train
