// Offsets that do not fit into 32 bits, in elements or in bytes of bf16: row loops give the same
// bits on rows beyond 2^31 elements of address space as at its start.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/common/cpu/math.h"
#include "kernels/convolution/short_conv_args.h"
#include "kernels/rows/rms_norm_args.h"
#include "ops/cross_entropy/cross_entropy_rows.h"
#include "support/sparse_memory.h"

namespace halflife::kernels {
namespace {

using halflife::test::SparseMemory;

constexpr int64_t kBeyond = int64_t{1} << 31;  // Elements.

// `count` elements of address space, of which those from `first` on are used.
template <typename T>
class Part {
 public:
  Part(int64_t count, int64_t first) : memory_(count * sizeof(T)), count_(count), first_(first) {}
  T* data() const { return static_cast<T*>(memory_.data()); }
  // Fills the part with numbers that do not depend on its position.
  void Fill(double seed) {
    for (int64_t i = first_; i < count_; ++i)
      data()[i] =
          Narrow<T>(static_cast<float>(std::sin(seed + 0.7 * static_cast<double>(i - first_))));
  }
  std::vector<T> Values() const { return {data() + first_, data() + count_}; }
  bool SameBits(const Part& other) const {
    const std::vector<T> a = Values(), b = other.Values();
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  }

 private:
  SparseMemory memory_;
  int64_t count_, first_;
};

template <typename T>
class FarRows : public testing::Test {};
using StorageTypes = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(FarRows, StorageTypes);

constexpr int64_t kDim = 64, kRows = 5;

// Runs forward and backward on rows [first, first + kRows).
template <typename T>
struct NormRun {
  explicit NormRun(int64_t first)
      : x(Rows(first)),
        residual(Rows(first)),
        gate(Rows(first)),
        sum(Rows(first)),
        out(Rows(first)),
        dout(Rows(first)),
        dx(Rows(first)),
        dgate(Rows(first)),
        inverse_rms(first + kRows, first),
        weight(kDim, 0.75f),
        dweight(kDim, 0.0f) {
    x.Fill(1), residual.Fill(2), gate.Fill(3), dout.Fill(4);
    cpu::NormForward(NormRows<T>{.x = x.data(),
                                 .residual = residual.data(),
                                 .gate = gate.data(),
                                 .weight = weight.data(),
                                 .sum = sum.data(),
                                 .out = out.data(),
                                 .inverse_rms = inverse_rms.data(),
                                 .dim = kDim,
                                 .eps = 1e-6f},
                     first, first + kRows);
    std::vector<float> scratch(kDim);
    cpu::NormBackward(NormGradRows<T>{.x = sum.data(),
                                      .gate = gate.data(),
                                      .weight = weight.data(),
                                      .inverse_rms = inverse_rms.data(),
                                      .dout = dout.data(),
                                      .dsum = x.data(),
                                      .dx = dx.data(),
                                      .dgate = dgate.data(),
                                      .dim = kDim},
                      first, first + kRows, dweight.data(), scratch.data());
  }
  static Part<T> Rows(int64_t first) { return {(first + kRows) * kDim, first * kDim}; }

  Part<T> x, residual, gate, sum, out, dout, dx, dgate;
  Part<float> inverse_rms;
  std::vector<float> weight, dweight;
};

TYPED_TEST(FarRows, RmsNorm) {
  const NormRun<TypeParam> near(0), far(kBeyond / kDim - 2);  // Across the boundary.
  EXPECT_TRUE(near.sum.SameBits(far.sum));
  EXPECT_TRUE(near.out.SameBits(far.out));
  EXPECT_TRUE(near.inverse_rms.SameBits(far.inverse_rms));
  EXPECT_TRUE(near.dx.SameBits(far.dx));
  EXPECT_TRUE(near.dgate.SameBits(far.dgate));
  EXPECT_EQ(near.dweight, far.dweight);
  EXPECT_NE(near.dweight[0], 0);
}

// Runs the last block of a row of kConvTokensPerBlock x (block + 1) tokens.
template <typename T>
struct ConvRun {
  static constexpr int64_t kTaps = kConvMaxTaps, kTokens = cpu::kConvTokensPerBlock;

  explicit ConvRun(int64_t block)
      : seq_len((block + 1) * kTokens),
        x(seq_len * kDim, block * kTokens * kDim),
        out(seq_len * kDim, block * kTokens * kDim),
        dout(seq_len * kDim, block * kTokens * kDim),
        dx(seq_len * kDim, block * kTokens * kDim),
        dweight(kTaps * kDim, 0.0f),
        reach(seq_len, block * kTokens),
        weight(kTaps * kDim) {
    x.Fill(1), dout.Fill(2);
    for (int64_t i = 0; i < kTaps * kDim; ++i) weight[i] = static_cast<float>(std::cos(0.3 * i));
    // A document starts with the block.
    for (int64_t i = 0; i < kTokens; ++i)
      reach.data()[block * kTokens + i] = static_cast<uint8_t>(std::min(i, kTaps - 1));
    const ConvShape<T> shape = {.x = x.data(),
                                .tail = nullptr,
                                .weight = weight.data(),
                                .reach = reach.data(),
                                .batch = 1,
                                .seq_len = seq_len,
                                .dim = kDim,
                                .x_stride = kDim,
                                .taps = kTaps};
    cpu::ConvForward(shape, block, out.data());
    std::vector<float> scratch((kTokens + kTaps) * kDim);
    const ConvGrads<T> grads = {
        .dout = dout.data(), .dx = dx.data(), .dx_stride = kDim, .dtail = nullptr};
    cpu::ConvBackward(shape, grads, block, dweight.data(), scratch.data());
  }

  const int64_t seq_len;
  Part<T> x, out, dout, dx;
  std::vector<float> dweight;
  Part<uint8_t> reach;
  std::vector<float> weight;
};

TYPED_TEST(FarRows, ShortConv) {
  using Run = ConvRun<TypeParam>;
  const Run near(0), far(kBeyond / (Run::kTokens * kDim) + 3);
  EXPECT_TRUE(near.out.SameBits(far.out));
  EXPECT_TRUE(near.dx.SameBits(far.dx));
  EXPECT_EQ(near.dweight, far.dweight);
  EXPECT_NE(near.dweight[0], 0);
}

// Without gradients, rows without a target are not read.
TEST(FarRowsCrossEntropy, LastRow) {
  constexpr int64_t kVocab = 1 << 20, kFar = kBeyond / kVocab + 1;
  const auto loss_of = [&](int64_t rows) {
    Part<float> logits(rows * kVocab, (rows - 1) * kVocab);
    logits.Fill(1);
    at::Tensor tensor = at::from_blob(logits.data(), {rows, kVocab}, at::kFloat);
    at::Tensor targets = at::full({rows}, -100, at::kLong);
    targets[rows - 1] = kVocab - 1;
    const auto out = ops::internal::EmptyRows(rows, tensor.options());
    ops::internal::ReduceRows(tensor, targets, 0, LogitGradient::kNone, out);
    return out.loss[rows - 1].item<float>();
  };
  EXPECT_EQ(loss_of(1), loss_of(kFar));
  EXPECT_GT(loss_of(1), 0);
}

}  // namespace
}  // namespace halflife::kernels
