// Parameters are read from differently ordered, transposed and joined tensors, in ranges of any
// size.
#include "interop/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "core/concat.h"
#include "support/expect_error.h"

namespace halflife::interop {
namespace {

using Values = std::vector<float>;

RangeReader ReaderOf(const Values& values) {
  return [&values](int64_t begin, int64_t end, float* out) {
    ASSERT_TRUE(0 <= begin && begin <= end && end <= static_cast<int64_t>(values.size()));
    std::copy(values.begin() + begin, values.begin() + end, out);
  };
}

// Reads everything in ranges of up to `most` elements.
Values InPieces(const RangeReader& read, int64_t count, int64_t most, std::mt19937_64& random) {
  Values values(static_cast<size_t>(count), -1.0f);
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = std::min(count, begin + static_cast<int64_t>(random() % most) + 1);
    read(begin, end, values.data() + begin);
    begin = end;
  }
  return values;
}

struct Case {
  int64_t out, in, num_parts;
  bool transposed;
};

// Returns a value that identifies the parameter and the position.
float Value(int64_t part, int64_t row, int64_t column) {
  return static_cast<float>(part * 1'000'000 + row * 1000 + column);
}

void ExpectBothWays(const Case& c) {
  SCOPED_TRACE(
      Concat(c.num_parts, " of [", c.out, ", ", c.in, "]", c.transposed ? ", transposed" : ""));
  const std::vector<int64_t> shape = {c.out, c.in};
  std::vector<Values> parameters;
  Values tensor(static_cast<size_t>(c.num_parts * c.out * c.in));
  for (int64_t part = 0; part < c.num_parts; ++part) {
    Values& parameter = parameters.emplace_back();
    for (int64_t row = 0; row < c.out; ++row)
      for (int64_t column = 0; column < c.in; ++column) {
        parameter.push_back(Value(part, row, column));
        const int64_t stacked_row = part * c.out + row;
        tensor[static_cast<size_t>(c.transposed ? column * c.num_parts * c.out + stacked_row
                                                : stacked_row * c.in + column)] = parameter.back();
      }
  }
  std::mt19937_64 random(3);
  const auto num_elements = static_cast<int64_t>(tensor.size());
  for (const int64_t most : {int64_t{1}, int64_t{7}, num_elements}) {
    std::vector<RangeReader> readers;
    for (int64_t part = 0; part < c.num_parts; ++part) {
      const Placement placement = {c.transposed, part, c.num_parts};
      const Values& parameter = parameters[static_cast<size_t>(part)];
      EXPECT_EQ(
          InPieces(ParameterReader(placement, shape, ReaderOf(tensor)), c.out * c.in, most, random),
          parameter);
      readers.push_back(ReaderOf(parameter));
    }
    const RangeReader whole = TensorReader({c.transposed, 0, c.num_parts}, shape, readers);
    EXPECT_EQ(InPieces(whole, num_elements, most, random), tensor);
  }
}

TEST(PlacementTest, ReadsEitherOutOfTheOtherInPiecesOfAnySize) {
  for (const bool transposed : {false, true})
    for (const int64_t num_parts : {1, 3})
      for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1, 1}, {1, 9}, {9, 1}, {5, 8}})
        ExpectBothWays({out, in, num_parts, transposed});
}

// More than one band of rows, in wide and in tall matrices.
TEST(PlacementTest, MatricesOfMoreThanABand) {
  std::mt19937_64 random(4);
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1500, 1100}, {3, 1'100'000}, {1'100'000, 2}}) {
    Values tensor(static_cast<size_t>(rows * columns)), want(tensor.size());
    std::iota(tensor.begin(), tensor.end(), 0.0f);  // Exact below 2^24.
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        want[static_cast<size_t>(column * rows + row)] =
            tensor[static_cast<size_t>(row * columns + column)];
    const RangeReader read =
        ParameterReader({.transposed = true}, {columns, rows}, ReaderOf(tensor));
    EXPECT_TRUE(InPieces(read, rows * columns, 1 << 21, random) == want) << rows;
  }
}

// Rows 3 to 8 of ten, whose neighbours are halves in the other order.
TEST(PlacementTest, SomeRowsInAnotherOrder) {
  std::mt19937_64 random(5);
  for (const int64_t columns : {1, 3}) {
    Values tensor(static_cast<size_t>(10 * columns)), some, halves;
    std::iota(tensor.begin(), tensor.end(), 0.0f);
    const auto append = [&](int64_t row, Values& to) {
      to.insert(to.end(), tensor.begin() + row * columns, tensor.begin() + (row + 1) * columns);
    };
    for (const int64_t row : {3, 4, 5, 6, 7, 8}) append(row, some);
    for (const int64_t row : {3, 5, 7, 4, 6, 8}) append(row, halves);
    const std::vector<int64_t> shape = {6, columns};
    for (const int64_t most : {int64_t{1}, int64_t{4}, 6 * columns}) {
      const auto read = [&](int64_t pair_rows) {
        const Placement placement = {.first_row = 3, .num_rows = 10, .pair_rows = pair_rows};
        EXPECT_EQ(TensorShape(placement, shape), (std::vector<int64_t>{10, columns}));
        return InPieces(ParameterReader(placement, shape, ReaderOf(tensor)), 6 * columns, most,
                        random);
      };
      EXPECT_EQ(read(0), some);
      EXPECT_EQ(read(6), halves);
    }
  }
  EXPECT_HL_ERROR(TensorReader({.pair_rows = 2}, {2}, {RangeReader()}), ExitCode::kInternal,
                  "selected or paired rows");
}

// Three parameters whose rows alternate in each group of a tensor: of sizes 1, 3 and 2.
TEST(PlacementTest, RowsOfGroups) {
  std::mt19937_64 random(6);
  for (const int64_t num_groups : {1, 2, 5}) {
    for (const int64_t columns : {1, 3}) {
      Values tensor(static_cast<size_t>(6 * num_groups * columns));
      std::iota(tensor.begin(), tensor.end(), 0.0f);
      for (const int64_t most : {int64_t{1}, int64_t{4}, int64_t{100}}) {
        std::vector<RowsOfTensor> parameters;
        std::vector<Values> values(3);
        for (const auto& [first_row, rows] : {std::pair<int64_t, int64_t>{4, 2}, {0, 1}, {1, 3}}) {
          const Placement placement = {
              .first_row = first_row, .num_rows = 6, .num_groups = num_groups};
          const std::vector<int64_t> shape = {rows * num_groups, columns};
          EXPECT_EQ(TensorShape(placement, shape), (std::vector<int64_t>{6 * num_groups, columns}));
          Values& want = values[parameters.size()];
          for (int64_t group = 0; group < num_groups; ++group) {
            const auto begin = tensor.begin() + (6 * group + first_row) * columns;
            want.insert(want.end(), begin, begin + rows * columns);
          }
          EXPECT_EQ(InPieces(ParameterReader(placement, shape, ReaderOf(tensor)),
                             rows * num_groups * columns, most, random),
                    want);
          parameters.push_back({placement, shape, ReaderOf(want)});
        }
        EXPECT_EQ(InPieces(TensorOfRows("x", parameters), 6 * num_groups * columns, most, random),
                  tensor);
        parameters.pop_back();
        EXPECT_HL_ERROR(TensorOfRows("x", parameters), ExitCode::kInternal,
                        "the parameters of x do not cover each of its rows once");
      }
    }
  }
}

// The rows of each head are split into halves separately.
TEST(PlacementTest, PairsOfTwoHeads) {
  const Values tensor = {0, 1, 2, 3, 4, 5, 6, 7};
  Values halves(8);
  ParameterReader({.pair_rows = 4}, {8}, ReaderOf(tensor))(0, 8, halves.data());
  EXPECT_EQ(halves, (Values{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_HL_ERROR(ParameterReader({.pair_rows = 3}, {6}, ReaderOf(tensor)), ExitCode::kInternal,
                  "6 rows cannot be split into groups of an even number of rows, 3");
}

// Keys between queries and values in the columns of one matrix [in, out]. A group of rows is read
// twice, because each read costs the whole matrix.
TEST(PlacementTest, PairsInAPartOfATransposedMatrix) {
  constexpr int64_t kOut = 8, kIn = 3;
  const std::vector<int64_t> order = {0, 2, 1, 3, 4, 6, 5, 7};  // Heads of four rows.
  Values tensor(kIn * 3 * kOut), want;
  std::iota(tensor.begin(), tensor.end(), 0.0f);
  for (const int64_t row : order)
    for (int64_t column = 0; column < kIn; ++column)
      want.push_back(tensor[static_cast<size_t>(column * 3 * kOut + kOut + row)]);
  const Placement keys = {.transposed = true, .part = 1, .num_parts = 3, .pair_rows = 4};
  int num_reads = 0;
  const RangeReader counted = [&](int64_t begin, int64_t end, float* out) {
    ++num_reads;
    ReaderOf(tensor)(begin, end, out);
  };
  std::mt19937_64 random(6);
  EXPECT_EQ(InPieces(ParameterReader(keys, {kOut, kIn}, counted), kOut * kIn, 5, random), want);
  num_reads = 0;
  Values whole(kOut * kIn);
  ParameterReader(keys, {kOut, kIn}, counted)(0, kOut * kIn, whole.data());
  EXPECT_EQ(whole, want);
  EXPECT_EQ(num_reads, 4);
}

TEST(PlacementTest, ShapesOfTheirTensors) {
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(TensorShape({}, {4, 5, 6}), (Shape{4, 5, 6}));
  EXPECT_EQ(TensorShape({.part = 1, .num_parts = 3}, {4}), (Shape{12}));
  EXPECT_EQ(TensorShape({.transposed = true, .num_parts = 3}, {4, 5}), (Shape{5, 12}));
  EXPECT_EQ(TensorShape({.leading_ones = 2}, {4}), (Shape{1, 1, 4}));
  EXPECT_HL_ERROR(TensorShape({.transposed = true}, {4}), ExitCode::kInternal,
                  "only matrices can be transposed, but the tensor has 1 dimensions");
}

}  // namespace
}  // namespace halflife::interop
