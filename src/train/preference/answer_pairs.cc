#include "train/preference/answer_pairs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "ops/torch/host_transfer.h"

namespace halflife::train {

PairLosses ComparePairs(const PreferenceConfig& config, const PairScores& scores,
                        const at::Tensor& lengths) {
  const at::Tensor exists = lengths.gt(0).to(at::kDouble);
  const at::Tensor per_token =
      config.loss == "ipo" ? exists / lengths.clamp_min(1) : exists;  // factor of the sums
  const at::Tensor log_ratio = (scores.reference - scores.policy) * per_token;
  const at::Tensor difference = log_ratio.select(2, 0) - log_ratio.select(2, 1);
  at::Tensor loss, slope;  // slope: the derivative by `difference`
  if (config.loss == "ipo") {
    const at::Tensor rest = difference - 1 / (2 * config.beta);
    loss = rest.square();
    slope = rest * 2;
  } else {
    const at::Tensor logit = difference * config.beta;
    loss = at::softplus(-logit);
    slope = at::sigmoid(-logit) * -config.beta;
  }
  return {.loss = loss * exists.select(2, 0),
          .rewards = log_ratio * config.beta,
          .weights = at::stack({-slope, slope}, 2) * per_token};
}

at::Tensor SumPairs(const PairLosses& pairs) {
  const at::Tensor chosen = pairs.rewards.select(2, 0), rejected = pairs.rewards.select(2, 1);
  return at::stack(
      {pairs.loss.sum(), chosen.sum(), rejected.sum(), chosen.gt(rejected).sum().to(at::kDouble)});
}

std::vector<int64_t> CountPairs(const data::Batch& batch) {
  std::vector<int64_t> documents(static_cast<size_t>(batch.batch_size));
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i)
    ++documents[static_cast<size_t>(batch.cu_seqlens[i] / batch.seq_len)];
  for (int64_t& count : documents) count /= 2;
  return documents;
}

PairRows::PairRows(const data::Batch& batch, at::Device device,
                   const model::SequenceParallel* parallel) {
  const std::vector<int64_t> pairs = CountPairs(batch);
  for (const int64_t count : pairs) num_pairs_ += count;
  const int64_t most = std::max<int64_t>(1, *std::ranges::max_element(pairs));
  const at::Tensor answer = at::full({batch.batch_size, batch.seq_len}, -1, at::kLong);
  const at::Tensor lengths = at::zeros({batch.batch_size, most, 2}, at::kDouble);
  auto* const of_token = answer.mutable_data_ptr<int64_t>();
  auto* const length = lengths.mutable_data_ptr<double>();
  int64_t row = -1, document = 0;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i, ++document) {
    const int64_t begin = batch.cu_seqlens[i], end = batch.cu_seqlens[i + 1];
    if (begin / batch.seq_len != row) row = begin / batch.seq_len, document = 0;
    if (document >= 2 * pairs[static_cast<size_t>(row)]) continue;
    for (int64_t t = begin; t < end; ++t) {
      if (batch.targets[static_cast<size_t>(t)] < 0) continue;
      of_token[t] = document;
      ++length[row * 2 * most + document];
    }
  }
  answer_ = ops::Upload(parallel ? parallel->TokensOf(answer).contiguous() : answer, device);
  lengths_ = ops::Upload(lengths, device);
}

at::Tensor PairRows::Sums(const at::Tensor& token_losses) const {
  // One answer at a time: [B, 2 P, T] would be as large as logits if a row has many pairs, and
  // index_add on a GPU adds in any order.
  const at::Tensor losses = token_losses.to(at::kDouble);
  std::vector<at::Tensor> sums;
  for (int64_t answer = 0; answer < 2 * max_pairs(); ++answer)
    sums.push_back(at::where(answer_.eq(answer), losses, 0.0).sum(1));
  return at::stack(sums, 1).view_as(lengths_);
}

at::Tensor PairRows::AtTokens(const at::Tensor& of_answers) const {
  const at::Tensor values = of_answers.flatten(1).gather(1, answer_.clamp_min(0));
  return values.masked_fill(answer_.lt(0), 0.0).to(at::kFloat);
}

}  // namespace halflife::train
