// The emulated CUDA kernel of dropout equals its definition: the mask that core/philox.h draws.
#include <limits>

#include "kernels/rows/dropout_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

struct Case {
  int64_t num_rows, seq_len, dim;
  int shift = 0;  // Elements by which both arrays are misaligned.
};

// Fewer channels than a draw, less than a pack, whole packs and an odd end; more than a block.
constexpr Case kCases[] = {{0, 3, 8},  {2, 5, 1},     {3, 4, 6},  {2, 3, 8},
                           {2, 9, 37}, {3, 7, 64, 1}, {3, 11, 72}};

template <typename T>
using DropoutKernel = test::RowsTest<T>;
TYPED_TEST_SUITE(DropoutKernel, test::Storages);

TYPED_TEST(DropoutKernel, IsPhiloxOfSamplePositionAndChannel) {
  using T = TypeParam;
  const RandomKey key = MakeRandomKey(5, RandomPurpose::kDropout, 3);
  const std::vector<uint64_t> samples = {7, (uint64_t{1} << 40) + 9, 8};
  constexpr int64_t kFirst = 100;
  constexpr double kRate = 0.3;
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message()
                 << c.num_rows << " x " << c.seq_len << " x " << c.dim << ", shift " << c.shift);
    const int64_t size = c.num_rows * c.seq_len * c.dim;
    const Array<T> x(Random(size, 1), c.shift);
    Array<T> out(size, c.shift);
    const DropoutArgs<T> args = {.x = x.data(),
                                 .out = out.data(),
                                 .samples = samples.data(),
                                 .num_tokens = c.num_rows * c.seq_len,
                                 .seq_len = c.seq_len,
                                 .dim = c.dim,
                                 .first_position = kFirst,
                                 .key = key,
                                 .threshold = DropoutThreshold(kRate),
                                 .scale = static_cast<float>(1 / (1 - kRate))};
    cuda::Dropout(args, nullptr);
    const Values in = x.values();
    Values want;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t token = i / c.dim, channel = i % c.dim;
      const auto position = static_cast<uint32_t>(kFirst + token % c.seq_len);
      const RandomCounter draw =
          Draw(key, samples[token / c.seq_len], position, static_cast<uint32_t>(channel / 4));
      const bool dropped = ToUniform(draw.x[channel % 4]) < kRate;
      // One fp32 product and its rounding to T, so the bits are equal.
      const auto kept = static_cast<float>(in[i]) * args.scale;
      want.push_back(dropped ? 0 : Widen(Narrow<T>(kept)));
    }
    EXPECT_EQ(out.values(), want);
  }
}

TYPED_TEST(DropoutKernel, ADroppedInfinityIsZero) {
  using T = TypeParam;
  constexpr int64_t kDim = 64;
  const Array<T> x(Values(kDim, std::numeric_limits<double>::infinity()));
  Array<T> out(kDim);
  const uint64_t sample = 4;
  cuda::Dropout(DropoutArgs<T>{.x = x.data(),
                               .out = out.data(),
                               .samples = &sample,
                               .num_tokens = 1,
                               .seq_len = 1,
                               .dim = kDim,
                               .key = MakeRandomKey(5, RandomPurpose::kDropout, 3),
                               .threshold = DropoutThreshold(0.5),
                               .scale = 2},
                nullptr);
  int64_t zeros = 0;
  for (const double value : out.values()) {
    EXPECT_TRUE(value == 0 || std::isinf(value)) << value;
    zeros += value == 0;
  }
  EXPECT_GT(zeros, 16);
  EXPECT_LT(zeros, 48);
}

}  // namespace
}  // namespace halflife::kernels
