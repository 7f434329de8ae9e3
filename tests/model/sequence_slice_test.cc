// SequenceSlice: positions and documents of rows and of parts of rows.
#include "model/sequence_slice.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include "support/expect_error.h"

namespace halflife::model {
namespace {

at::Tensor Longs(std::vector<int64_t> values, std::vector<int64_t> shape) {
  return at::tensor(values, at::kLong).view(shape);
}

TEST(SequenceSliceTest, Contiguous) {
  const auto slice = SequenceSlice::Contiguous(2, 3, 5, at::kCPU);
  EXPECT_TRUE(slice.positions.equal(Longs({5, 6, 7, 5, 6, 7}, {2, 3})));
  EXPECT_FALSE(slice.has_boundaries());
  EXPECT_EQ(slice.begin, 5);
}

TEST(SequenceSliceTest, PackedCountsFromEachStart) {
  const std::vector<int32_t> cu_seqlens = {0, 2, 5, 6, 10};
  const auto slice = SequenceSlice::Packed(2, 5, cu_seqlens, at::kCPU);
  EXPECT_TRUE(slice.positions.equal(Longs({0, 1, 0, 1, 2, 0, 0, 1, 2, 3}, {2, 5})));
  EXPECT_TRUE(slice.documents.equal(Longs({0, 0, 1, 1, 1, 0, 1, 1, 1, 1}, {2, 5})));
  EXPECT_TRUE(slice.starts.to(at::kLong).equal(Longs({1, 0, 1, 0, 0, 1, 1, 0, 0, 0}, {2, 5})));
}

TEST(SequenceSliceTest, OneDocumentARowTakesTheUnmaskedPath) {
  const std::vector<int32_t> cu_seqlens = {0, 5, 10};
  EXPECT_FALSE(SequenceSlice::Packed(2, 5, cu_seqlens, at::kCPU).has_boundaries());
}

// Otherwise each layer would build and upload its own table.
TEST(SequenceSliceTest, ABatchHasOneTableOfChunks) {
  const auto rows = SequenceSlice::Packed(2, 40, std::vector<int32_t>{0, 40, 80}, at::kCPU);
  ASSERT_NE(rows.chunks, nullptr);
  const auto own = ops::MakeSequenceChunks({.batch = 2, .seq_len = 40}, at::kCPU);
  ASSERT_EQ(rows.chunks->num_chunks(), own->num_chunks());
  EXPECT_EQ(rows.chunks->num_sequences(), 2);
  for (int i = 0; i < own->num_chunks(); ++i) {
    EXPECT_EQ(rows.chunks->table.chunks[i].token, own->table.chunks[i].token);
    EXPECT_EQ(rows.chunks->table.chunks[i].flags, own->table.chunks[i].flags);
  }
  const auto part = rows.Narrow(3, 33);
  ASSERT_NE(part.chunks, nullptr);
  EXPECT_EQ(part.chunks->seq_len, 33);
  EXPECT_NE(part.rotary, rows.rotary);
  EXPECT_EQ(SequenceSlice::Contiguous(2, 40, 0, at::kCPU).chunks, nullptr);
}

TEST(SequenceSliceTest, NarrowKeepsTheWholesNumbers) {
  const std::vector<int32_t> cu_seqlens = {0, 2, 5, 6, 10};
  const auto part = SequenceSlice::Packed(2, 5, cu_seqlens, at::kCPU).Narrow(1, 3);
  EXPECT_EQ(part.seq_len, 3);
  EXPECT_EQ(part.begin, 1);
  EXPECT_EQ(part.Narrow(2, 1).begin, 3);
  EXPECT_TRUE(part.positions.equal(Longs({1, 0, 1, 0, 1, 2}, {2, 3})));
  EXPECT_TRUE(part.documents.equal(Longs({0, 1, 1, 1, 1, 1}, {2, 3})));
}

// Tensors that depend on positions are made once for a slice and its copies, for each key and
// tensor.
TEST(SequenceSliceTest, TensorsOfPositionsAreMadeOnce) {
  const SequenceSlice slice = SequenceSlice::Contiguous(1, 4, 3, at::kCPU), copy = slice;
  const at::Tensor other = slice.positions + 5;
  int made = 0;
  const auto of = [&](const SequenceSlice& from, const at::Tensor& positions, double key) {
    return from.of_positions->Of(positions, {"test", {key}}, [&] {
      ++made;
      return positions * key;
    });
  };
  const at::Tensor first = of(slice, slice.positions, 2);
  EXPECT_TRUE(first.equal(slice.positions * 2.0));
  EXPECT_TRUE(of(copy, slice.positions, 2).is_same(first));
  EXPECT_EQ(made, 1);
  EXPECT_TRUE(of(slice, slice.positions, 3).equal(slice.positions * 3.0));
  EXPECT_TRUE(of(slice, other, 2).equal(other * 2.0));
  EXPECT_EQ(made, 3);
}

TEST(SequenceSliceTest, Misuse) {
  const std::vector<int32_t> short_end = {0, 5, 9};
  EXPECT_HL_ERROR(SequenceSlice::Packed(2, 5, std::vector<int32_t>{0, 3, 7, 10}, at::kCPU),
                  ExitCode::kInternal, "[3, 7)", "crosses a row of 5");
  EXPECT_HL_ERROR(SequenceSlice::Packed(2, 5, short_end, at::kCPU), ExitCode::kInternal,
                  "from 0 to 10");
  EXPECT_HL_ERROR(SequenceSlice::Contiguous(1, 4, 0, at::kCPU).Narrow(2, 3), ExitCode::kInternal,
                  "[2, 5)", "are outside the slice, whose length is 4");
}

}  // namespace
}  // namespace halflife::model
