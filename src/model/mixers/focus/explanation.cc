#include "model/mixers/focus/explanation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "ops/focus_pool/focus_pool.h"

namespace halflife::model {
namespace {

constexpr int64_t kLongestDense = 4096;

// The shares of tokens [begin, begin + count) in rows [first, first + num): [B, num, count, H].
struct Part {
  int64_t first, num, begin, count;
};
at::Tensor Shares(const Explanation& e, const Part& part) {
  const auto places = e.log_weight.options().dtype(at::kLong);
  const at::Tensor row = at::arange(part.first, part.first + part.num, places).unsqueeze(1),
                   token = at::arange(part.begin, part.begin + part.count, places).unsqueeze(0);
  at::Tensor sees = token <= row;
  if (e.window > 0) sees = sees.logical_and(row - token < e.window);
  sees = sees.unsqueeze(0);
  if (e.documents.defined())
    sees = sees.logical_and(e.documents.narrow(1, part.first, part.num).unsqueeze(2) ==
                            e.documents.narrow(1, part.begin, part.count).unsqueeze(1));
  const auto rows = [&](const at::Tensor& x) {
    return x.narrow(1, part.first, part.num).unsqueeze(2);
  };
  const at::Tensor weight =
      (e.log_weight.narrow(1, part.begin, part.count).unsqueeze(1) - rows(e.row_max)).exp();
  const at::Tensor share = weight / rows(e.row_sum);
  return at::where(sees.unsqueeze(3), share, at::zeros({}, share.options()));
}

}  // namespace

at::Tensor Explanation::Row(int64_t row) const {
  return Shares(*this, {.first = row, .num = 1, .begin = 0, .count = log_weight.size(1)})
      .squeeze(1);
}

at::Tensor Explanation::Column(int64_t token) const {
  return Shares(*this, {.first = 0, .num = log_weight.size(1), .begin = token, .count = 1})
      .squeeze(2);
}

at::Tensor Explanation::Dense() const {
  const int64_t seq_len = log_weight.size(1);
  HL_CHECK_AS(ExitCode::kUsage, seq_len <= kLongestDense, "the shares of all tokens in rows of ",
              seq_len, " tokens are too many. Use rows of at most ", kLongestDense,
              " tokens, or single rows and tokens.");
  return Shares(*this, {.first = 0, .num = seq_len, .begin = 0, .count = seq_len});
}

at::Tensor Explanation::Importance() const { return Row(log_weight.size(1) - 1); }

at::Tensor Explanation::Focus() const {
  const at::Tensor weight = (log_weight - log_weight.amax(1, /*keepdim=*/true)).exp();
  return weight / weight.mean(1, /*keepdim=*/true);
}

Explanation ExplainPool(const at::Tensor& log_weight, const SequenceSlice& slice, int64_t window,
                        double eps) {
  const at::Tensor weights = log_weight.detach();
  // The row maxima and sums do not depend on the payload, so it is zeros.
  const ops::FocusPoolOutput y = ops::FocusPool(
      {.log_weight = weights,
       .u = at::zeros({weights.size(0), weights.size(1), weights.size(2), 1}, weights.options()),
       .chunks = slice.chunks},
      {.window = window, .eps = eps});
  return {.log_weight = weights,
          .row_max = y.row_max,
          .row_sum = y.row_sum,
          .documents = slice.documents,
          .window = window};
}

}  // namespace halflife::model
