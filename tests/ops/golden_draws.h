// Inputs of golden values, from a generator that any language can reproduce: s = (1103515245 s +
// 12345) mod 2^31 from a seed, with values s / 2^30 - 1 in row-major order.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ops/random_tensors.h"

namespace halflife::test {

class GoldenDraws {
 public:
  explicit GoldenDraws(uint64_t seed) : state_(seed) {}
  at::Tensor operator()(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) {
      state_ = (1103515245 * state_ + 12345) % (uint64_t{1} << 31);
      values.push_back(static_cast<double>(state_) / (1 << 30) - 1);
    }
    return ToTensor(values, shape);
  }

 private:
  uint64_t state_;
};

// Expects the values of a published table, which has nine digits after the point.
inline void ExpectGolden(const at::Tensor& got, const std::vector<double>& want) {
  const std::vector<double> values = ToValues(got);
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], 1e-9) << i;
}

}  // namespace halflife::test
