// The emulated gates of the delta rule read and write columns of wider matrices.
#include <gtest/gtest.h>

#include "kernels/rows/delta_gates_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

constexpr int64_t kRows = 45, kHeads = 3, kChannels = 8, kDecays = kHeads * kChannels;

// x and b are columns [x_column, x_column + kDecays) and [b_column, b_column + kHeads) of one
// matrix with rows of `stride` elements. Their gradients have the same places in another matrix.
struct Places {
  int64_t stride, x_column, b_column;
};

// Returns the gradients of x and b as dense matrices, and fails if another element was written.
Values GradientsOfColumns(const Places& at) {
  constexpr float kUntouched = -77;
  const Values x = Random(kRows * kDecays, 1), b = Random(kRows * kHeads, 2);
  Array<float> in(kRows * at.stride), out(Values(kRows * at.stride, kUntouched));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kDecays; ++i)
      in.data()[row * at.stride + at.x_column + i] = static_cast<float>(x[row * kDecays + i]);
    for (int64_t i = 0; i < kHeads; ++i)
      in.data()[row * at.stride + at.b_column + i] = static_cast<float>(b[row * kHeads + i]);
  }
  const Array<float> bias(Random(kDecays, 3)), a_log(Random(kHeads, 4, 0.3)),
      dlog_decay(Random(kRows * kDecays, 5)), dbeta(Random(kRows * kHeads, 6));
  Array<float> dbias(kDecays), da_log(kHeads);
  const DeltaGatesGradRows<float> rows = {.x = in.data() + at.x_column,
                                          .b = in.data() + at.b_column,
                                          .dlog_decay = dlog_decay.data(),
                                          .dbeta = dbeta.data(),
                                          .dx = out.data() + at.x_column,
                                          .db = out.data() + at.b_column,
                                          .form = {.bias = bias.data(),
                                                   .a_log = a_log.data(),
                                                   .num_heads = kHeads,
                                                   .channels = kChannels,
                                                   .num_betas = kHeads},
                                          .num_rows = kRows,
                                          .x_stride = at.stride,
                                          .b_stride = at.stride,
                                          .dx_stride = at.stride,
                                          .db_stride = at.stride};
  Array<float> workspace(cuda::DeltaGatesWorkspaceFloats(kRows, rows.form));
  cuda::DeltaGatesBackward(rows, {.dbias = dbias.data(), .da_log = da_log.data()}, workspace.data(),
                           nullptr);
  Values gradients;
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t i = 0; i < at.stride; ++i) {
      const float value = out.data()[row * at.stride + i];
      const bool is_x = i >= at.x_column && i < at.x_column + kDecays;
      const bool is_b = i >= at.b_column && i < at.b_column + kHeads;
      if (is_x || is_b)
        gradients.push_back(value);
      else
        EXPECT_EQ(value, kUntouched) << "row " << row << ", column " << i;
    }
  return gradients;
}

TEST(DeltaGatesKernel, GradientsAreColumnsOfAWiderMatrix) {
  const Values dense = GradientsOfColumns({kDecays + kHeads, 0, kDecays});
  EXPECT_EQ(GradientsOfColumns({kDecays + kHeads + 13, 4, kDecays + 9}), dense);
  for (const double value : dense) ASSERT_NE(value, -77);
}

}  // namespace
}  // namespace halflife::kernels
