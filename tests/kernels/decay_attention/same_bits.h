// Expects that two runs of one problem have equal bits, including NaN.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/decay_attention/problem.h"

namespace halflife::kernels::test {

inline void ExpectSameBits(const Result& got, const Result& want) {
  for (const auto& [name, values] : want) {
    ASSERT_EQ(values.size(), got.at(name).size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), got.at(name).data(), values.size() * sizeof(double)), 0)
        << name;
  }
}

}  // namespace halflife::kernels::test
