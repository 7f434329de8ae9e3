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
