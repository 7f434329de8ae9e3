// Runs a sweep: its datasets, then its runs side by side, each a process of its own, and what they
// came to. Whatever stopped it, the same call goes on: finished runs stay, others resume from their
// checkpoints, and a run that fails stops no other.
#pragma once

#include <string>
#include <vector>

#include "core/exit_code.h"
#include "sweep/results.h"

namespace halflife::sweep {

struct SweepRequest {
  SweepConfig config;
  std::filesystem::path folder;   // --out
  std::filesystem::path program;  // `halflife`
  int jobs = 0;                   // runs at a time; 0: one for each GPU, or as the cores allow
  int retries = 0;                // further attempts of a run that fails
  int share = 0, num_shares = 1;  // this process takes runs share, share + num_shares, ...
  ReadRun read_run;
};

// How many runs there are, how they stand, and what it would do: several lines. Error kUsage: a run
// whose recipe is impossible, with its name.
std::string PlanText(const SweepRequest& request);

// kFinished: all runs of this share are. Stopped by a signal: kInterrupted for INT, else kRequeue,
// as a run would end. Else the exit code of the first run that failed. Prints the table of this
// share's runs. Error before anything starts: an impossible recipe, one that a run of this folder
// was not made by (kUsage), or a dataset that cannot be read or does not fit its recipe (as `train`
// would refuse it); for a dataset that the sweep makes, before the first run starts.
ExitCode RunSweep(const SweepRequest& request);

}  // namespace halflife::sweep
