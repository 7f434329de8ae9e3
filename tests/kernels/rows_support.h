// Plain arrays in the storage types of elementwise kernels, and comparisons for their emulated
// tests.
//
//   const Array<Bf16> x(Random(rows * dim, 1), /*shift=*/3);  // Misaligned by 6 bytes.
//   ExpectClose<Bf16>("out", out.values(), want, kRoundings);
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/cpu/math.h"

namespace halflife::kernels::test {

using Values = std::vector<double>;

// Returns standard normals times `scale`.
inline Values Random(int64_t count, uint64_t seed, double scale = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0, scale);
  Values values(count);
  for (double& value : values) value = normal(engine);
  return values;
}

// Values rounded to T, `shift` elements into an allocation that ends with them, so AddressSanitizer
// detects an access to the next element.
template <typename T>
class Array {
 public:
  explicit Array(int64_t count, int shift = 0) : memory_(count + shift), shift_(shift) {}
  explicit Array(const Values& values, int shift = 0)
      : Array(static_cast<int64_t>(values.size()), shift) {
    for (size_t i = 0; i < values.size(); ++i) data()[i] = Narrow<T>(static_cast<float>(values[i]));
  }
  T* data() { return memory_.data() + shift_; }
  const T* data() const { return memory_.data() + shift_; }
  Values values() const {
    Values values;
    for (size_t i = shift_; i < memory_.size(); ++i) values.push_back(Widen(memory_[i]));
    return values;
  }

 private:
  std::vector<T> memory_;
  int shift_;
};

// Expects |got - want| within `fp32` times the largest |want| (at least 1), for sums in fp32. If T
// is bf16, a rounding to 8 significant bits of the value itself is allowed, too. NaN fails. The
// message names the worst element.
template <typename T>
void ExpectClose(const std::string& name, const Values& got, const Values& want, double fp32) {
  ASSERT_EQ(got.size(), want.size()) << name;
  double largest = 1;
  for (const double x : want) largest = std::max(largest, std::abs(x));
  const double relative = sizeof(T) == 2 ? 0x1p-8 : 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double allowed = fp32 * largest + relative * std::abs(want[i]);
    ASSERT_TRUE(std::abs(got[i] - want[i]) <= allowed)
        << name << "[" << i << "]: got " << got[i] << ", want " << want[i] << ", allowed "
        << allowed;
  }
}

template <typename T>
class RowsTest : public testing::Test {};
using Storages = testing::Types<float, Bf16>;

}  // namespace halflife::kernels::test
