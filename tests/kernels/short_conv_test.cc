#include "kernels/short_conv/short_conv.h"

#include <ATen/ops/cat.h>

#include "kernels/gradient_check.h"

namespace halflife::kernels {
namespace {

using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kSeqLen = 9, kDim = 5, kTaps = 4;

ShortConvInputs Inputs() {
  return {.x = Normal({kBatch, kSeqLen, kDim}, 1),
          .weight = Normal({kDim, 1, kTaps}, 2),
          .tail = Normal({kBatch, kTaps - 1, kDim}, 3),
          .documents = {},
          .starts = {}};
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

TEST(ShortConvTest, IsTheDefinitionWithDocuments) {
  ShortConvInputs in = Inputs();
  in.starts = at::empty({kBatch, kSeqLen}, at::kBool).fill_(false);
  in.starts[0][0] = true;  // cuts the tail off
  in.starts[0][4] = true;
  in.starts[1][2] = true;
  in.documents = in.starts.to(at::kLong).cumsum(1);
  const at::Tensor y = ShortConv(in);
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t t = 0; t < kSeqLen; ++t) {
      double sum = 0;
      for (int64_t back = 0; back < kTaps; ++back) {
        const int64_t from = t - back;
        const at::Tensor source = from >= 0 ? in.x[b][from] : in.tail[b][kTaps - 1 + from];
        sum += in.weight[1][0][kTaps - 1 - back].item<double>() * source[1].item<double>();
        if (from >= 0 && in.starts[b][from].item<bool>()) break;
      }
      EXPECT_NEAR(y[b][t][1].item<double>(), Silu(sum), 1e-14) << b << ", " << t;
    }
  }
}

TEST(ShortConvTest, SplitAnywhereIsTheWhole) {
  ShortConvInputs whole = Inputs();
  whole.starts = at::empty({kBatch, kSeqLen}, at::kBool).fill_(false);
  whole.starts[1][3] = true;
  whole.documents = whole.starts.to(at::kLong).cumsum(1);
  const at::Tensor want = ShortConv(whole);
  for (int64_t cut = 1; cut < kSeqLen; ++cut) {  // parts shorter than the tail too
    ShortConvInputs first = whole, second = whole;
    for (const auto member :
         {&ShortConvInputs::x, &ShortConvInputs::documents, &ShortConvInputs::starts}) {
      first.*member = (whole.*member).narrow(1, 0, cut);
      second.*member = (whole.*member).narrow(1, cut, kSeqLen - cut);
    }
    second.tail = ShortConvTail(first);
    EXPECT_TRUE(Close(at::cat({ShortConv(first), ShortConv(second)}, 1), want, 1e-14)) << cut;
    EXPECT_TRUE(Close(ShortConvTail(second), ShortConvTail(whole), 1e-14)) << cut;
  }
}

TEST(ShortConvTest, GradientsAreFiniteDifferences) {
  test::ExpectFiniteDifferences(
      [](const auto& in) {
        return ShortConv(
                   {.x = in[0], .weight = in[1], .tail = in[2], .documents = {}, .starts = {}})
            .square()
            .sum();
      },
      {Inputs().x, Inputs().weight, Inputs().tail});
}

}  // namespace
}  // namespace halflife::kernels
