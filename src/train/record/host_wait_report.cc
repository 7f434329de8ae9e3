#include "train/record/host_wait_report.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/concat.h"
#include "core/human.h"

namespace halflife::train {
namespace {

// Returns the phases in the order of a step.
std::vector<std::string> InOrder(const HostWaitReport::Phases& phases) {
  static constexpr std::array kOrder = {"data", "forward", "backward", "reduce", "update"};
  std::vector<std::string> names;
  for (const char* phase : kOrder)
    if (phases.contains(phase)) names.emplace_back(phase);
  for (const auto& [phase, counts] : phases)
    if (std::ranges::find(kOrder, phase) == kOrder.end()) names.push_back(phase);
  return names;
}

}  // namespace

void HostWaitReport::Add(const Phases& step) {
  ++num_steps_;
  for (const auto& [phase, counts] : step) {
    ops::HostCounts& sum = sums_[phase];
    for (const auto& [name, count] : counts.waits) sum.waits[name] += count;
    for (const auto& [name, count] : counts.kernels) sum.kernels[name] += count;
    sum.uploads += counts.uploads;
    sum.read_backs += counts.read_backs;
  }
}

std::string HostWaitReport::Text() const {
  if (num_steps_ == 0) return "host waits: no step ran";
  const auto mean = [&](int64_t count) {
    return Fixed(static_cast<double>(count) / static_cast<double>(num_steps_), 1);
  };
  std::string text = Concat("host waits, means of ", num_steps_, " steps:");
  int64_t num_waits = 0, num_reads = 0;
  for (const std::string& phase : InOrder(sums_)) {
    const ops::HostCounts& counts = sums_.at(phase);
    num_waits += counts.num_waits(), num_reads += counts.read_backs;
    text += Concat("\n  ", phase, ": ", mean(counts.num_waits()), " waits, ",
                   mean(counts.read_backs), " reads, ", mean(counts.uploads), " uploads, ",
                   mean(counts.num_kernels()), " launches");
    for (const auto& [name, count] : counts.waits)
      text += Concat("\n    waits in ", name, ": ", mean(count));
  }
  if (num_waits == 0 && num_reads == num_steps_)
    return text + "\n  the only wait is the one read of a step's scalars";
  return text + Concat("\n  a step waits ", mean(num_waits + num_reads),
                       " times; only 1, the read of its scalars, is needed");
}

}  // namespace halflife::train
