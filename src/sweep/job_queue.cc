#include "sweep/job_queue.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "core/clock.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/files.h"
#include "core/host.h"
#include "core/log.h"

extern char** environ;

namespace halflife::sweep {
namespace {

constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
constexpr int kCannotStart = 127;  // The exit code that a shell uses.

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A run is a separate job, not a rank of the launcher that may have started this process, so the
// launcher's rank variables are removed.
std::vector<std::string> EnvironmentWith(
    const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = MakesARank(text);
    for (const auto& [name, value] : more) replaced |= text.starts_with(name + "=");
    if (!replaced) all.push_back(text);
  }
  for (const auto& [name, value] : more) all.push_back(Concat(name, "=", value));
  return all;
}

int ExitCodeOf(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs in the child after fork. Locks may be held by threads that no longer exist, so only system
// calls are allowed.
[[noreturn]] void Become(char* const* words, char* const* environment, int log,
                         const sigset_t& signals, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kCannotStart);  // The parent died before prctl.
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(nothing, STDIN_FILENO);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::execve(words[0], words, environment);
  ::_exit(kCannotStart);
}

}  // namespace

ChildProcesses::ChildProcesses() {
  ::sigemptyset(&waited_for_);
  for (const int stop : kStops) {
    struct sigaction now {};
    // Signals that nohup made the process ignore would still be delivered by sigwaitinfo if they
    // were blocked.
    if (::sigaction(stop, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) continue;
    ::sigaddset(&waited_for_, stop);
  }
  ::sigaddset(&waited_for_, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &waited_for_, &before_);
}

ChildProcesses::~ChildProcesses() {
  Signal(SIGTERM);
  for (const auto& [pid, id] : ids_) ::waitpid(pid, nullptr, 0);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void ChildProcesses::Start(const ChildCommand& command) {
  const Fd log =
      OpenFile(command.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, ExitCode::kEnvironment);
  std::vector<std::string> words = command.words;
  std::vector<std::string> environment = EnvironmentWith(command.environment);
  const std::vector<char*> argv = PointersTo(words), envp = PointersTo(environment);
  const pid_t self = ::getpid();
  const pid_t pid = ::fork();
  HL_CHECK_AS(ExitCode::kEnvironment, pid >= 0, "cannot start ", command.words[0], ": ",
              internal::ErrnoText(errno));
  if (pid == 0) Become(argv.data(), envp.data(), log.get(), before_, self);
  ids_[pid] = command.id;
}

ChildEvent ChildProcesses::Wait() {
  HL_CHECK_AS(ExitCode::kInternal, !ids_.empty(), "there is no child process to wait for");
  while (true) {
    // A child that ends before sigwaitinfo leaves SIGCHLD pending. Several children leave only one.
    for (const auto& [pid, id] : ids_) {
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) != pid) continue;
      const ChildEvent event{.id = id, .exit_code = ExitCodeOf(status)};
      ids_.erase(pid);
      return event;
    }
    const int signal = ::sigwaitinfo(&waited_for_, nullptr);
    if (signal > 0 && signal != SIGCHLD) return {.signal = signal};
  }
}

void ChildProcesses::Signal(int signal) {
  for (const auto& [pid, id] : ids_) {
    if (::kill(pid, signal) != 0 && errno != ESRCH)
      HL_WARN("sweep", "cannot signal process ", pid, ": ", internal::ErrnoText(errno));
  }
}

namespace {

class Queue {
 public:
  Queue(const std::vector<Job>& jobs, const Slots& slots) : jobs_(jobs), slots_(slots) {
    for (size_t id = 0; id < jobs.size(); ++id) waiting_.push_back(id);
    for (int slot = 0; slot < slots.count; ++slot) free_.insert(slot);
  }

  int Run() {
    while (true) {
      while (stopped_by_ == 0 && !waiting_.empty() && !free_.empty()) StartNext();
      if (running_.empty()) return stopped_by_;
      const ChildEvent event = children_.Wait();
      if (event.signal != 0) {
        stopped_by_ = event.signal;
        HL_WARN("sweep", "stopped by the signal ", ::strsignal(event.signal), ": ", running_.size(),
                " running, ", waiting_.size(), " not started");
        // A training run and `prepare` both end in order after TERM.
        children_.Signal(event.signal == SIGINT ? SIGINT : SIGTERM);
      } else {
        End(event);
      }
    }
  }

 private:
  struct Running {
    int slot = 0;
    Stopwatch clock;
  };

  void StartNext() {
    const size_t id = waiting_.front();
    waiting_.pop_front();
    if (!jobs_[id].started()) return;
    const int slot = *free_.begin();
    free_.erase(free_.begin());
    ChildCommand command = jobs_[id].command;
    command.id = id;
    if (!slots_.gpus.empty()) {
      const size_t gpu = static_cast<size_t>(slot) % slots_.gpus.size();
      command.environment.emplace_back("CUDA_VISIBLE_DEVICES", slots_.gpus[gpu]);
    }
    if (slots_.threads > 0)
      command.environment.emplace_back("OMP_NUM_THREADS", Concat(slots_.threads));
    children_.Start(command);
    running_[id] = {.slot = slot, .clock = {}};
  }

  void End(const ChildEvent& event) {
    const Running ended = running_.at(event.id);
    running_.erase(event.id);
    free_.insert(ended.slot);
    const bool again =
        jobs_[event.id].ended(event.exit_code, ended.clock.Seconds(), stopped_by_ != 0);
    if (again) waiting_.push_back(event.id);
  }

  const std::vector<Job>& jobs_;
  const Slots& slots_;
  ChildProcesses children_;
  std::deque<size_t> waiting_;
  std::set<int> free_;
  std::map<size_t, Running> running_;
  int stopped_by_ = 0;
};

}  // namespace

int RunJobs(const std::vector<Job>& jobs, const Slots& slots) { return Queue(jobs, slots).Run(); }

}  // namespace halflife::sweep
