// Which tensors are recognised as adjacent in memory, and the matrices that are made of them.
#include "ops/torch/side_by_side.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "ops/random_tensors.h"

namespace halflife::ops {
namespace {

using test::BitEqual;
using test::Normal;
using testing::ElementsAre;

// Returns matrices [rows, 4] at these rows of one memory block.
std::vector<at::Tensor> RowsOf(const at::Tensor& memory, const std::vector<int64_t>& begins,
                               const std::vector<int64_t>& counts) {
  std::vector<at::Tensor> matrices;
  for (size_t i = 0; i < begins.size(); ++i)
    matrices.push_back(memory.narrow(0, begins[i], counts[i]));
  return matrices;
}

TEST(SideBySide, RunsOfRowsFollowMemory) {
  const at::Tensor memory = Normal({20, 4}, 1, at::kFloat), other = Normal({20, 4}, 2, at::kFloat);
  // In an arena the later part comes first.
  const auto reversed = RowsOf(memory, {10, 4, 0}, {5, 6, 4});
  EXPECT_THAT(AdjacentRowGroups(reversed), ElementsAre(ElementsAre(2, 1, 0)));
  EXPECT_TRUE(BitEqual(JoinRows({reversed[2], reversed[1], reversed[0]}), memory.narrow(0, 0, 15)));
  // A gap of one row, and a matrix that is twice in the list.
  EXPECT_THAT(AdjacentRowGroups(RowsOf(memory, {0, 5, 10}, {4, 5, 5})),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
  EXPECT_EQ(AdjacentRowGroups(RowsOf(memory, {0, 0}, {4, 4})).size(), 2);
  // Other memory, another width, and columns.
  EXPECT_EQ(AdjacentRowGroups({memory, other}).size(), 2);
  EXPECT_EQ(AdjacentRowGroups({memory.narrow(0, 0, 2), memory.narrow(0, 2, 2).view({4, 2})}).size(),
            2);
  EXPECT_EQ(AdjacentRowGroups({memory.narrow(1, 0, 2), memory.narrow(1, 2, 2)}).size(), 2);
}

TEST(SideBySide, ColumnsAreAViewWhereTheyCanBe) {
  const at::Tensor memory = Normal({3, 10}, 1, at::kFloat);
  const auto columns = [&](int64_t begin, int64_t count) { return memory.narrow(1, begin, count); };
  const at::Tensor view = ColumnsAsOne({columns(2, 3), columns(5, 1), columns(6, 2)});
  EXPECT_EQ(view.const_data_ptr(), columns(2, 3).const_data_ptr());
  EXPECT_TRUE(BitEqual(view.contiguous(), columns(2, 6).contiguous()));
  // The last one has more columns than the row stride, so a product cannot treat it as a matrix.
  const at::Tensor longer = Normal({4, 10}, 3, at::kFloat);
  for (const std::vector<at::Tensor>& apart :
       {std::vector{columns(5, 3), columns(2, 3)},
        {columns(0, 2), columns(3, 2)},
        {columns(0, 3), Normal({3, 2}, 2, at::kFloat)},
        {longer.narrow(0, 0, 3).narrow(1, 5, 5), longer.narrow(0, 1, 3).narrow(1, 0, 8)}}) {
    const at::Tensor copy = ColumnsAsOne(apart);
    EXPECT_TRUE(copy.is_contiguous());
    EXPECT_TRUE(BitEqual(copy, at::cat(apart, 1)));
  }
}

TEST(SideBySide, RowStride) {
  const at::Tensor x = at::empty({2, 3, 4, 8});
  EXPECT_EQ(RowStride(x), 8);
  EXPECT_EQ(RowStride(x, 2), 32);
  EXPECT_EQ(RowStride(x.narrow(3, 2, 5)), 8);
  EXPECT_EQ(RowStride(x.narrow(2, 1, 2), 2), 32);
  // One of three tokens of each row of the batch.
  EXPECT_EQ(RowStride(x.narrow(1, 1, 1), 2), 96);
  EXPECT_EQ(RowStride(x.narrow(0, 1, 1).narrow(1, 1, 1), 2), 32);  // One token, as if dense.
  EXPECT_EQ(RowStride(at::empty({2, 0, 4, 8}), 2), 32);
  EXPECT_EQ(RowStride(x.narrow(1, 0, 2), 2), std::nullopt);
  EXPECT_EQ(RowStride(x.narrow(3, 2, 5), 2), std::nullopt);
  EXPECT_EQ(RowStride(x.transpose(2, 3), 2), std::nullopt);
  EXPECT_EQ(RowStride(x.narrow(2, 0, 1).transpose(2, 3), 2), 32);
}

TEST(SideBySide, EmptyAdjacentKeepsTheOrder) {
  const at::Tensor both = Normal({2, 3, 8}, 1, at::kFloat);
  const at::Tensor left = both.narrow(-1, 0, 4), right = both.narrow(-1, 4, 4);
  EXPECT_TRUE(AreAdjacentHalves(left, right) && AreAdjacentHalves(right, left));
  const auto [a, b] = EmptyAdjacentHalves(left, right);
  EXPECT_TRUE(AreAdjacentHalves(a, b));
  EXPECT_EQ(b.storage_offset() - a.storage_offset(), 4);
  const auto [c, d] = EmptyAdjacentHalves(right, left);
  EXPECT_EQ(c.storage_offset() - d.storage_offset(), 4);
  EXPECT_EQ(c.sizes(), left.sizes());
  const at::Tensor row = both.narrow(0, 0, 1).narrow(1, 1, 1);
  EXPECT_TRUE(AreAdjacentHalves(row.narrow(-1, 0, 4), row.narrow(-1, 4, 4)));

  EXPECT_FALSE(AreAdjacentHalves(left, both.narrow(-1, 3, 4)));
  EXPECT_FALSE(AreAdjacentHalves(left.transpose(0, 1), right.transpose(0, 1)));
  EXPECT_FALSE(AreAdjacentHalves(left.contiguous(), right.contiguous()));
  EXPECT_FALSE(AreAdjacentHalves(at::empty({0, 4}), at::empty({0, 4})));
  for (const at::Tensor& apart : EmptyAdjacentHalves(left, both.narrow(-1, 3, 4)))
    EXPECT_TRUE(apart.is_contiguous());
}

}  // namespace
}  // namespace halflife::ops
