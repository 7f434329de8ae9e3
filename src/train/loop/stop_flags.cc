#include "train/loop/stop_flags.h"

#include <signal.h>
#include <unistd.h>

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

}  // namespace halflife::train
