// What makes the host wait for the device within a run's steps, and what it launches there:
// `train --check-sync`.
//
//   HostWaitReport report;
//   report.Add(waits.Take());       // of a step, by its phases
//   HL_INFO("train", report.Text());
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
  // A line for each phase and what waited in it, in means over the steps; then whether anything did
  // beside the one read of a step's scalars.
  std::string Text() const;

 private:
  int64_t num_steps_ = 0;
  Phases sums_;
};

}  // namespace halflife::train
