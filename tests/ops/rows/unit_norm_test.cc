// Queries and keys that are scaled to Euclidean norm 1.
#include "ops/rows/rms_norm.h"

#include <ATen/ops/full.h>

#include <cmath>

#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;

constexpr double kEps = 1e-6;

TEST(UnitNormTest, IsTheFormula) {
  const at::Tensor q = Normal({2, 3, 4}, 1), k = Normal({2, 3, 4}, 2);
  const UnitNormPair y = UnitNorm({.q = q, .k = k}, 0.3);
  for (const auto& [x, unit] : {std::pair(q, y.q), std::pair(k, y.k)}) {
    const at::Tensor squares = x.square().sum(-1, /*keepdim=*/true);
    EXPECT_TRUE(unit.allclose(x / (squares + 0.3).sqrt(), 1e-14, 1e-15));
  }
}

// The norm of every row is 1 up to rounding, for short and long rows. A row of zeros stays zero,
// with a finite gradient. A NaN stays in its row.
TEST(UnitNormTest, RowsHaveNormOne) {
  for (const int64_t dim : {1, 5, 64, 300}) {
    SCOPED_TRACE(dim);
    at::Tensor q = Normal({20, dim}, 1, at::kFloat) * 1e4, k = Normal({20, dim}, 2, at::kFloat);
    q[3].zero_();
    k[7][0] = std::nanf("");
    q.requires_grad_();
    const UnitNormPair y = UnitNorm({.q = q, .k = k}, kEps);
    const at::Tensor norms = y.q.norm(2, -1);
    for (int64_t row = 0; row < 20; ++row)
      EXPECT_NEAR(norms[row].item<double>(), row == 3 ? 0 : 1, 1e-6) << row;
    EXPECT_EQ(y.k.isnan().any(-1).sum().item<int64_t>(), 1);
    EXPECT_TRUE(y.k[7].isnan().all().item<bool>());
    const at::Tensor dq = torch::autograd::grad({y.q.sum()}, {q})[0];
    EXPECT_TRUE(dq.isfinite().all().item<bool>());
    EXPECT_TRUE(dq[3].allclose(at::full({dim}, 1 / std::sqrt(kEps), at::kFloat)));
  }
}

TEST(UnitNormTest, BadInput) {
  const at::Tensor q = Normal({6, 10}, 1, at::kFloat);
  EXPECT_HL_ERROR(UnitNorm({.q = q, .k = q.narrow(1, 0, 5)}, kEps), ExitCode::kInternal,
                  "UnitNorm got q [6, 10] fp32 on cpu and k [6, 5] fp32 on cpu",
                  "of one shape and dtype");
  EXPECT_HL_ERROR(UnitNorm({.q = q.to(at::kHalf), .k = q}, kEps), ExitCode::kUsage,
                  "UnitNorm does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::ops
