// Jobs that run as processes, some at a time, until all have ended or somebody says stop.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sweep/child_processes.h"

namespace halflife::sweep {

struct Job {
  ChildCommand command;           // `id` is the queue's to set
  std::function<bool()> started;  // just before; returns whether it shall
  // Returns whether to start it once more. `stopping`: it was asked to stop.
  std::function<bool(int exit_code, double seconds, bool stopping)> ended;
};

struct Slots {
  int count = 1;                  // jobs at a time
  std::vector<std::string> gpus;  // slot i sees gpus[i % size] alone; empty: all see all
  int threads = 0;                // of each, where its recipe does not say; 0: not told
};

// Returns the signal that stopped it, 0 where every job has run. What runs is sent the signal (for
// HUP, which programs die of, TERM), and waited for; what has not started never does.
int RunJobs(const std::vector<Job>& jobs, const Slots& slots);

}  // namespace halflife::sweep
