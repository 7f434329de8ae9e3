// Programs that run side by side, and the signals that this process gets meanwhile.
//
//   ChildProcesses children;  // from now on signals that would stop us wait for Wait()
//   children.Start({.words = {"/usr/bin/env", "true"}, .environment = {}, .log = "logs/a.log"});
//   const ChildEvent event = children.Wait();  // a child's end, or a signal
#pragma once

#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace halflife::sweep {

struct ChildCommand {
  size_t id = 0;                   // the caller's name for it
  std::vector<std::string> words;  // the program's path, then its arguments
  std::vector<std::pair<std::string, std::string>> environment;  // set on top of this process's
  std::filesystem::path log;  // stdout and stderr are appended to it
};

struct ChildEvent {
  int signal = 0;     // that asks this process to stop; 0: a child has ended
  size_t id = 0;      // which
  int exit_code = 0;  // its own; 128 + N: signal N ended it
};

// One at a time in a process. INT, TERM, HUP and USR1, where they are not ignored, wait to be told
// by Wait() while it lives. A child has its own process group, so that a terminal's Ctrl-C reaches
// it through Signal alone, and gets TERM when this process dies.
class ChildProcesses {
 public:
  ChildProcesses();
  ~ChildProcesses();  // ends with TERM what still runs, and waits for it
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Error kEnvironment: the log cannot be written, no process to be had. A program that cannot be
  // started ends with 127.
  void Start(const ChildCommand& command);

  // Sleeps until a child ends or a signal comes; there is a child.
  ChildEvent Wait();
  void Signal(int signal);  // to all that run

 private:
  sigset_t waited_for_{}, before_{};
  std::map<pid_t, size_t> ids_;
};

}  // namespace halflife::sweep
