// Reports operations that make the host wait for the device within the steps of a run, and
// launches: `train --check-sync`.
//
//   HostWaitReport report;
//   report.Add(waits.Take());       // Waits of one step, by phase.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ops/torch/host_waits.h"

namespace halflife::train {

class HostWaitReport {
 public:
  using Phases = std::map<std::string, ops::HostCounts>;

  void Add(const Phases& step);
  // Returns one line per phase with the operations that waited, as means over the steps. The last
  // line says whether the step waited for anything except the one read of its scalars.
  std::string Text() const;

 private:
  int64_t num_steps_ = 0;
  Phases sums_;
};

}  // namespace halflife::train
