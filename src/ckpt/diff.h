// Compares two steps tensor by tensor. Their world sizes may differ.
//
//   const StepDifference difference = DiffSteps(a, b, {.arrays = {kMainArray}});
//   if (!difference.equal()) ...
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/reader.h"

namespace halflife::ckpt {

// Distances in units in the last place: 0, 1, 2-3, 4-15, 16-255, more (NaN against a number counts
// as more).
constexpr std::array<const char*, 6> kUlpBins = {"0", "1", "2-3", "4-15", "16-255", ">=256"};

struct TensorDifference {
  std::string array;
  std::string name;
  int64_t count = 0;  // elements compared
  double max_abs = 0;
  double relative_l2 = 0;  // |a - b| / |a|; infinite where a is zero and b is not
  std::array<int64_t, kUlpBins.size()> ulps = {};
  int64_t first_different = -1;    // element; in bits, so that -0 and 0 differ
  float value_a = 0, value_b = 0;  // there
  bool equal() const { return first_different < 0; }
};

struct StepDifference {
  std::vector<std::string> only_in_a, only_in_b;  // "main/name"
  std::vector<std::string> reshaped;              // "name: [2, 3] against [3, 2]"
  std::vector<TensorDifference> tensors;          // of equal shape, equal or not
  bool equal() const;
};

struct DiffOptions {
  std::vector<std::string> arrays;  // empty: all of both steps
  bool stop_at_first = false;       // end with the first tensor that differs
};
// Throws Error kUsage for an array that neither step has.
StepDifference DiffSteps(const StepReader& a, const StepReader& b, const DiffOptions& options);

}  // namespace halflife::ckpt
