// Runs a sweep: prepares its datasets, trains its runs in parallel, each in a separate process, and
// writes their results. A sweep that was stopped continues with the same call: finished runs are
// kept, and others resume from their checkpoints. A failed run does not stop the others.
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
  int jobs = 0;     // Runs at the same time. 0: one per GPU, or as many as the cores allow.
  int retries = 0;  // Further attempts for a run that fails.
  int share = 0, num_shares = 1;  // This process runs the trials share, share + num_shares, ...
  ReadRun read_run;
};

// Returns several lines: the number of runs, their states, and what the sweep would do. Throws
// kUsage if the recipe of a run is invalid; the message names the run.
std::string PlanText(const SweepRequest& request);

// Runs this share of the sweep and prints the table of its runs. Returns
// - kFinished if all runs of this share are finished,
// - kInterrupted if INT stopped the sweep, kRequeue for other signals,
// Throws before anything starts (1) if a recipe is invalid or if a run in this folder was made with
// another recipe (kUsage), (2) if a dataset cannot be read or does not fit its recipe (with the
// error of `train`). Datasets that the sweep makes are checked before the first run starts.
ExitCode RunSweep(const SweepRequest& request);

}  // namespace halflife::sweep
