// Random tensors for tests, which depend only on seed and shape, on any machine. Comparisons report
// the position of the largest error.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/philox.h"

namespace halflife::test {

// Returns at least the first `count` standard normals of a seed, valid until the thread's next
// call. Drawing them would take most of the time of many tests, which use the same seeds again and
// again, so up to 2^24 values (128 MB) are kept.
inline const std::vector<double>& NormalsOfSeed(uint64_t seed, int64_t count) {
  thread_local std::map<uint64_t, std::vector<double>> kept;
  thread_local int64_t num_kept = 0;
  if (num_kept + count > int64_t{1} << 24) {
    kept.clear();
    num_kept = 0;
  }
  const RandomKey key = MakeRandomKey(seed, RandomPurpose::kTest, 0);
  std::vector<double>& values = kept[seed];
  for (auto i = static_cast<int64_t>(values.size()); i < count; ++i, ++num_kept) {
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(i), 0, 0);
    values.push_back(ToNormal(draw.x[0], draw.x[1]).a);
  }
  return values;
}

// Draws standard normals in fp64 and casts them to `dtype`. fp32 and fp64 tensors of one seed agree
// up to rounding.
inline at::Tensor Normal(std::vector<int64_t> shape, uint64_t seed,
                         at::ScalarType dtype = at::kDouble) {
  at::Tensor out = at::empty(shape, at::kDouble);
  std::copy_n(NormalsOfSeed(seed, out.numel()).begin(), out.numel(),
              out.mutable_data_ptr<double>());
  return out.to(dtype);
}

// Draws fp64 values, uniform in [0, 1).
inline at::Tensor Uniform(std::vector<int64_t> shape, uint64_t seed) {
  at::Tensor out = at::empty(shape, at::kDouble);
  double* data = out.mutable_data_ptr<double>();
  const RandomKey key = MakeRandomKey(seed, RandomPurpose::kTest, 1);
  for (int64_t i = 0; i < out.numel(); ++i) {
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(i), 0, 0);
    data[i] = ToUniform(draw.x[0], draw.x[1]);
  }
  return out;
}

// Checks |got - want| <= tolerance * max(1, largest |want|) everywhere; NaN fails.
inline testing::AssertionResult Close(const at::Tensor& got_in, const at::Tensor& want_in,
                                      double tolerance) {
  if (!got_in.defined() || !want_in.defined())
    return testing::AssertionFailure() << "an undefined tensor";
  if (got_in.sizes() != want_in.sizes())
    return testing::AssertionFailure() << "shapes " << got_in.sizes() << " and " << want_in.sizes();
  const at::Tensor got = got_in.detach().to(at::kDouble).contiguous();
  const at::Tensor want = want_in.detach().to(at::kDouble).contiguous();
  const double* a = got.const_data_ptr<double>();
  const double* b = want.const_data_ptr<double>();
  double largest = 1, worst = -1;
  int64_t place = 0;
  for (int64_t i = 0; i < got.numel(); ++i) largest = std::max(largest, std::abs(b[i]));
  for (int64_t i = 0; i < got.numel(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference, place = i;
    if (std::isnan(difference)) break;
  }
  if (worst <= tolerance * largest) return testing::AssertionSuccess();
  std::string index;
  int64_t rest = place;
  for (int64_t dim = got.dim() - 1; dim >= 0; --dim) {
    index = std::to_string(rest % got.size(dim)) + (index.empty() ? "" : ", ") + index;
    rest /= got.size(dim);
  }
  return testing::AssertionFailure() << "worst at [" << index << "]: got " << a[place] << ", want "
                                     << b[place] << ", allowed " << tolerance * largest;
}

// Return the largest difference relative to the largest value, and the relative root mean square.
inline double LargestError(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor wide = want.to(at::kDouble);
  return ((got.to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}
inline double MeanError(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor wide = want.to(at::kDouble);
  return ((got.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

// Convert an oracle's values to a tensor, and back.
inline at::Tensor ToTensor(const std::vector<double>& values, at::IntArrayRef shape,
                           at::ScalarType dtype = at::kDouble) {
  at::Tensor x = at::empty(shape, at::kDouble);
  std::copy(values.begin(), values.end(), x.mutable_data_ptr<double>());
  return x.to(dtype);
}
inline std::vector<double> ToValues(const at::Tensor& x) {
  if (!x.defined()) return {};
  const at::Tensor wide = x.detach().to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

inline bool BitEqual(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.sizes() == b.sizes() && a.equal(b);
}

// Expects Close for each pair of tensors of two lists.
inline void ExpectClose(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want,
                        double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(Close(got[i], want[i], tolerance)) << i;
}
inline void ExpectBitEqual(const std::vector<at::Tensor>& got,
                           const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(BitEqual(got[i], want[i])) << i;
}

}  // namespace halflife::test
