// Runs jobs as processes, several at a time, until all have ended or a signal asks to stop.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sweep/child_processes.h"

namespace halflife::sweep {

struct Job {
  ChildCommand command;  // `id` is set by the queue.
  // Called just before the job starts. Returns false to skip the job.
  std::function<bool()> started;
  // Returns true to start the job again. `stopping` is true if the queue was asked to stop.
  std::function<bool(int exit_code, double seconds, bool stopping)> ended;
};

struct Slots {
  int count = 1;                  // Jobs that run at the same time.
  std::vector<std::string> gpus;  // Slot i sees only gpus[i % size]. Empty: all GPUs are visible.
  int threads = 0;  // CPU threads per job if its recipe does not set them. 0: not set.
};

// Returns the signal that stopped the queue, or 0 if all jobs have run. Running jobs receive the
// signal (TERM instead of HUP, which would kill them) and are waited for. Jobs that have not
// started are not started.
int RunJobs(const std::vector<Job>& jobs, const Slots& slots);

}  // namespace halflife::sweep
