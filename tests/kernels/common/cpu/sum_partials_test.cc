// Sums of partial gradients have the bits of sequential additions, for every output layout and
// number of threads.
#include "kernels/common/sum_partials.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace halflife::kernels::cpu {
namespace {

// Returns terms of many magnitudes, so that another order of additions changes bits.
template <typename C>
std::vector<C> Terms(int64_t count, int64_t seed) {
  std::vector<C> terms(count);
  for (int64_t i = 0; i < count; ++i) {
    const double angle = static_cast<double>(i + seed) * 12.9898;
    terms[i] = static_cast<C>(std::sin(angle) * std::exp2((i + seed) % 17));
  }
  return terms;
}

class Threads {
 public:
  explicit Threads(int count) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_ = omp_get_max_threads();
};

// Sums to a matrix, to its transpose and to no output, in adjacent columns.
template <typename C>
void ExpectOneAfterTheOther(int64_t count, int64_t rows, int64_t columns, bool added) {
  const int64_t size = rows * columns, stride = 3 * size;
  const std::vector<C> partials = Terms<C>(count * stride, 1), before = Terms<C>(size, 5);
  std::vector<C> plain(size), transposed(size);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t i = row * columns + column, turned = column * rows + row;
      plain[i] = added ? before[i] : C(0), transposed[turned] = added ? before[turned] : C(0);
      for (int64_t p = 0; p < count; ++p) {
        plain[i] += partials[p * stride + i];
        transposed[turned] += partials[p * stride + 2 * size + i];
      }
    }
  }
  std::vector<C> got = before, got_transposed = before;
  SumPartials(partials.data(), count,
              {{.out = got.data(), .size = size, .added = added},
               {.out = nullptr, .size = size},
               {.out = got_transposed.data(), .size = size, .added = added, .rows = rows}});
  EXPECT_EQ(got, plain);
  EXPECT_EQ(got_transposed, transposed);
}

// Sums [count, size] to one output.
template <typename C>
void ExpectOneAfterTheOther(int64_t count, int64_t size, bool added) {
  const std::vector<C> partials = Terms<C>(count * size, 9), before = Terms<C>(size, 5);
  std::vector<C> got = before, want = added ? before : std::vector<C>(size);
  for (int64_t p = 0; p < count; ++p)
    for (int64_t i = 0; i < size; ++i) want[i] += partials[p * size + i];
  SumPartials(partials.data(), count, size, got.data(), added);
  EXPECT_EQ(got, want);
}

// Sizes around the 1024 columns that are summed at a time, and above the 4096 columns of a thread.
TEST(SumPartialsTest, BitsOfOneAfterTheOther) {
  for (const int num_threads : {1, 3}) {
    const Threads threads(num_threads);
    for (const bool added : {false, true})
      for (const int64_t count : {0, 1, 2, 37})
        for (const int64_t columns : {1, 7, 341, 342, 1024, 2047}) {
          SCOPED_TRACE(testing::Message() << num_threads << " threads, " << count << " x 3 x "
                                          << columns << (added ? ", added" : ""));
          ExpectOneAfterTheOther<float>(count, 3, columns, added);
          ExpectOneAfterTheOther<double>(count, 3, columns, added);
          ExpectOneAfterTheOther<float>(count, columns, added);
          ExpectOneAfterTheOther<double>(count, columns, added);
        }
  }
}

}  // namespace
}  // namespace halflife::kernels::cpu
