// Checks that a backward adds the gradients of parameters to sinks.
//
//   ExpectGradientsInSinks(y, dy, {weight, bias}, /*added=*/true);
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstddef>
#include <vector>

#include "ops/random_tensors.h"
#include "ops/recording_sink.h"

namespace halflife::test {

// `leaves` of y require gradients and have no sink; dy is the gradient of y. The gradients are
// `added` to a sink that holds 0.5, or replace its contents. No gradient remains in a leaf. They
// are within 1e-5 of LibTorch's in fp32.
inline void ExpectGradientsInSinks(const at::Tensor& y, const at::Tensor& dy,
                                   const std::vector<at::Tensor>& leaves, bool added) {
  const auto want = torch::autograd::grad({y}, leaves, {dy}, /*retain_graph=*/true);
  std::vector<RecordingSink::Log> logs;
  for (const at::Tensor& leaf : leaves) logs.emplace_back(leaf, /*before=*/0.5);
  for (size_t i = 0; i < leaves.size(); ++i) logs[i].added = added, logs[i].Attach(leaves[i]);
  y.backward(dy);
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_EQ(logs[i].written, 1);
    EXPECT_FALSE(leaves[i].grad().defined());
    EXPECT_TRUE(Close(logs[i].sum, want[i] + (added ? 0.5 : 0.0), 1e-5)) << i;
  }
}

}  // namespace halflife::test
