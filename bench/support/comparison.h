// Compares an operation of the project with forms of it in LibTorch's operations on the CPU: times
// of forward and of forward + backward in turns, ratios, and the end of a benchmark's main().
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "core/host.h"
#include "kernels/common/cpu/instruction_set.h"
#include "support/measure.h"
#include "support/program.h"

namespace halflife::bench {

// Milliseconds of each round.
struct Times {
  std::vector<double> forward_ms, both_ms;

  double forward() const { return Median(forward_ms); }
  double both() const { return Median(both_ms); }
};

// Adds one round: `form` without gradients, then with the gradients of `leaves`.
inline void TimeOnce(const std::function<at::Tensor()>& form, const std::vector<at::Tensor>& leaves,
                     const at::Tensor& dout, Times& times) {
  {
    const c10::AutoGradMode no_grad(false);
    times.forward_ms.push_back(Milliseconds(at::kCPU, [&] { form(); }));
  }
  times.both_ms.push_back(
      Milliseconds(at::kCPU, [&] { torch::autograd::grad({form()}, leaves, {dout}); }));
}

// Sets the medians of a form.
template <typename Json>
void SetMedians(Json& result, const Times& times) {
  result["forward_ms"] = times.forward();
  result["forward_backward_ms"] = times.both();
}

// Sets how many times faster `ours` is than the fastest of the others, if there are any.
template <typename Json>
void SetSpeedRatios(Json& result, const Times& ours, const std::map<std::string, Times>& others) {
  if (others.empty()) return;
  const auto fastest = [&](auto time) {
    return time(std::ranges::min_element(others, {}, [&](const auto& of) {
                  return time(of.second);
                })->second);
  };
  result["speed_ratio_forward"] =
      fastest([](const Times& t) { return t.forward(); }) / ours.forward();
  result["speed_ratio_forward_backward"] =
      fastest([](const Times& t) { return t.both(); }) / ours.both();
}

// Sets the cost of a token, forward + backward, in nanoseconds per unit (tokens, or tokens times
// heads), by length, and the ratio of the longest to the shortest. time(seq_len, times) adds one
// round at this length; all lengths have equally many units. The ratio is the median of the ratios
// within a round, because the machine's speed changes between rounds. Every other round runs in
// reverse order.
template <typename Json>
void SetCostsByLength(Json& result, std::vector<int64_t> lengths, int rounds, double units,
                      const std::function<void(int64_t seq_len, Times& times)>& time) {
  const int64_t shortest = lengths.front(), longest = lengths.back();
  std::map<int64_t, Times> times;
  std::vector<double> ratios;
  for (int round = 0; round < rounds + 1; ++round) {
    if (round == 1) times.clear(), ratios.clear();  // The first round is a warm-up.
    for (const int64_t seq_len : lengths) time(seq_len, times[seq_len]);
    ratios.push_back(times[longest].both_ms.back() / times[shortest].both_ms.back());
    std::ranges::reverse(lengths);
  }
  for (const auto& [seq_len, of_length] : times)
    result["ns_per_unit"][std::to_string(seq_len)] = of_length.both() * 1e6 / units;
  result["longest_over_shortest"] = Median(ratios);
  result["longest_over_shortest_quartiles"] = {Quantile(ratios, 0.25), Quantile(ratios, 0.75)};
}

// Prepares threads, heap and instruction set as a training run does, and prints the JSON text that
// `report` returns. Returns the exit code. Every call of an operation allocates its results: with
// this heap, which reuses freed memory, the loops are timed and not page faults.
inline int PrintReport(int threads, const std::function<std::string()>& report) {
  at::set_num_threads(threads);
  PrepareHeap();
  return ExitCodeOf([&] {
    kernels::cpu::UseInstructionSetOfEnvironment();
    std::cout << report() << "\n";
  });
}

}  // namespace halflife::bench
