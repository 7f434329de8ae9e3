// Runs jobs as processes, several at a time, until all have ended or a signal asks to stop.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace halflife::sweep {

// Runs programs in parallel, and receives the signals that this process gets in the meantime.
//
//   ChildProcesses children;  // blocks stop signals, which Wait() reports
//   children.Start({.words = {"/usr/bin/env", "true"}, .environment = {}, .log = "logs/a.log"});
//   const ChildEvent event = children.Wait();  // a child has ended, or a signal arrived
struct ChildCommand {
  size_t id = 0;                   // Chosen by the caller to identify the command.
  std::vector<std::string> words;  // Path of the program, then its arguments.
  // Added to this process's environment.
  std::vector<std::pair<std::string, std::string>> environment;
  std::filesystem::path log;  // stdout and stderr are appended to this file.
};

struct ChildEvent {
  int signal = 0;     // A signal that asks this process to stop. 0: a child has ended.
  size_t id = 0;      // Id of the child that ended.
  int exit_code = 0;  // Its exit code. 128 + N: it was ended by signal N.
};

// Only one instance may exist per process. During its lifetime, INT, TERM, HUP and USR1 (unless
// they are ignored) are blocked and reported by Wait(). Each child has its own process group, so
// that Ctrl-C in a terminal reaches it only through Signal(), and receives TERM if this process
// dies.
class ChildProcesses {
 public:
  ChildProcesses();
  ~ChildProcesses();  // Sends TERM to the running children and waits for them.
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Starts a program. Throws kEnvironment if the log cannot be written or no process can be
  // created. If the program cannot be executed, the child ends with exit code 127.
  void Start(const ChildCommand& command);

  // Sleeps until a child ends or a signal arrives. There must be a child.
  ChildEvent Wait();
  void Signal(int signal);  // Sends a signal to all running children.

 private:
  sigset_t waited_for_{}, before_{};
  std::map<pid_t, size_t> ids_;
};

struct Job {
  ChildCommand command;  // `id` is set by the queue.
  // Called just before the job starts. Returns false to skip the job.
  std::function<bool()> started;
  // Returns true to start the job again. `stopping` is true after SIGINT, SIGTERM, SIGHUP or
  // SIGUSR1.
  std::function<bool(int exit_code, double seconds, bool stopping)> ended;
};

struct Slots {
  int count = 1;                  // Jobs that run at the same time.
  std::vector<std::string> gpus;  // Slot i sees only gpus[i % size]. Empty: all GPUs are visible.
  int threads = 0;  // CPU threads per job if its recipe does not set them. 0: not set.
};

// Returns the signal that stopped the queue, or 0 if all jobs have run. Running jobs receive INT
// after INT, and TERM after the others, which would kill some of them. They are waited for. Jobs
// that have not started are not started.
int RunJobs(const std::vector<Job>& jobs, const Slots& slots);

}  // namespace halflife::sweep
