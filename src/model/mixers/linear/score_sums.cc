#include "model/mixers/linear/score_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <vector>

#include "model/projections.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

constexpr int64_t kBlock = 128;  // number of queries whose scores are in memory at a time

}  // namespace

at::Tensor ScoreSums(const ScoreRows& rows) {
  const at::NoGradGuard no_grad;
  const at::ScalarType compute = ops::ComputeType(rows.q);
  const int64_t num_queries = rows.q.size(1), num_keys = rows.k.size(1);
  const at::Tensor k =  // [B, H, K, N]
      RepeatHeads(rows.k, rows.q.size(2)).to(compute).permute({0, 2, 3, 1});
  const at::Tensor q = rows.q.to(compute).transpose(1, 2) * rows.scale;  // [B, H, T, K]
  const at::Tensor key = at::arange(num_keys, rows.positions.options());
  const at::Tensor log_decay = rows.log_decay.to(compute).view({-1, 1, 1});
  std::vector<at::Tensor> sums = {q.narrow(2, 0, 0).sum(3)};
  for (int64_t begin = 0; begin < num_queries; begin += kBlock) {
    const int64_t count = std::min(kBlock, num_queries - begin);
    const at::Tensor place = at::arange(count, key.options()) + (num_keys - num_queries + begin);
    const at::Tensor gap = place.unsqueeze(1) - key;  // [n, N]
    const at::Tensor seen = at::logical_and(
        gap >= 0, gap <= rows.positions.narrow(1, begin, count).unsqueeze(2));   // [B, n, N]
    const at::Tensor decay = at::exp(log_decay * gap.clamp_min(0).to(compute));  // [H, n, N]
    const at::Tensor scores = at::matmul(q.narrow(2, begin, count), k).abs() * decay;
    // Filled rather than multiplied by 0, which would keep a NaN of a key that is not visible.
    sums.push_back(scores.masked_fill(seen.logical_not().unsqueeze(1), 0).sum(3));
  }
  return at::cat(sums, 2).transpose(1, 2);
}

}  // namespace halflife::model
