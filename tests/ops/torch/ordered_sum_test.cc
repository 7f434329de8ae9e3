// The sum of parts on a device has the bits of the sums of dist on the CPU.
#include "ops/torch/ordered_sum.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "dist/request.h"

namespace halflife::ops {
namespace {

template <typename T>
void ExpectTheBitsOfOrderedReduce(DType dtype) {
  constexpr int64_t kCount = 513;
  std::mt19937 random(7);
  for (int num_parts = 2; num_parts <= 17; ++num_parts) {
    SCOPED_TRACE(num_parts);
    std::vector<T> parts(num_parts * kCount), sum(kCount), expected(kCount);
    for (T& value : parts) value = std::uniform_real_distribution<T>(-1, 1)(random);
    std::vector<const void*> in;
    for (int part = 0; part < num_parts; ++part) in.push_back(&parts[part * kCount]);
    dist::OrderedReduce(dtype, dist::ReduceOp::kSum, in, expected.data(), kCount);
    SumInOrder(Ref(parts.data(), num_parts * kCount), num_parts, Ref(sum.data(), kCount), nullptr);
    EXPECT_EQ(sum, expected);
  }
}

TEST(OrderedSum, HasTheBitsOfOrderedReduce) {
  ExpectTheBitsOfOrderedReduce<float>(DType::kF32);
  ExpectTheBitsOfOrderedReduce<double>(DType::kF64);
}

}  // namespace
}  // namespace halflife::ops
