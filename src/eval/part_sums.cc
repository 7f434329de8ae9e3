#include "eval/part_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "eval/recall.h"

namespace halflife::eval {
namespace {

constexpr const char* kRecallNames[] = {"token_seen", "token_new", "bigram_seen", "bigram_new"};

// Converts flags [B, T] of a batch's tokens (0 or 1) to a mask on the device of `like`.
at::Tensor MaskOf(const std::vector<uint8_t>& flags, const data::Batch& batch,
                  const at::Tensor& like) {
  return at::from_blob(const_cast<uint8_t*>(flags.data()), {batch.batch_size, batch.seq_len},
                       at::kByte)
      .to(like.device(), at::kBool);
}

}  // namespace

at::Tensor RowSums(const at::Tensor& x) {
  return x.to(at::kCPU).to(at::kDouble).sum(1).contiguous();
}

void PartSums::Add(int64_t window, int64_t part, const at::Tensor& losses,
                   const at::Tensor& num_targets) {
  const at::Tensor loss = RowSums(losses), count = RowSums(num_targets);
  for (int64_t row = 0; row < losses.size(0); ++row) {
    double* const place = &sums_[static_cast<size_t>(2 * ((window + row) * num_parts_ + part))];
    place[0] = loss.const_data_ptr<double>()[row];
    place[1] = count.const_data_ptr<double>()[row];
  }
}

std::vector<PartSums::Score> PartSums::Scores(dist::Communicator& control, const char* name) {
  if (sums_.empty()) return {};
  control
      .AllReduce(Ref(sums_.data(), static_cast<int64_t>(sums_.size())), dist::ReduceOp::kSum,
                 {name, 0}, nullptr)
      .WaitHost();
  std::vector<Score> scores;
  for (int64_t part = 0; part < num_parts_; ++part) {
    double loss = 0, num_targets = 0;
    for (size_t at = static_cast<size_t>(2 * part); at < sums_.size();
         at += static_cast<size_t>(2 * num_parts_))
      loss += sums_[at], num_targets += sums_[at + 1];
    scores.push_back({static_cast<int64_t>(num_targets), loss / num_targets});
  }
  return scores;
}

BinSums::BinSums(int64_t num_windows, int64_t seq_len, int64_t bin)
    : bin_(bin),
      num_bins_(bin > 0 ? (seq_len + bin - 1) / bin : 0),
      sums_(num_windows, num_bins_) {}

void BinSums::Add(int64_t window, const at::Tensor& losses, const at::Tensor& asked) {
  for (int64_t i = 0; i < num_bins_; ++i) {
    const int64_t begin = i * bin_, length = std::min(bin_, losses.size(1) - begin);
    sums_.Add(window, i, losses.narrow(1, begin, length), asked.narrow(1, begin, length));
  }
}

std::vector<PositionScore> BinSums::Scores(dist::Communicator& control) {
  std::vector<PositionScore> scores;
  int64_t begin = -bin_;
  for (const PartSums::Score& score : sums_.Scores(control, "validation_bins")) {
    begin += bin_;
    if (score.num_targets == 0) continue;
    scores.push_back({.begin = begin, .num_targets = score.num_targets, .loss = score.loss});
  }
  return scores;
}

ContextSums::ContextSums(int64_t num_windows, bool wanted)
    : wanted_(wanted), sums_(num_windows, wanted ? 1 : 0) {}

void ContextSums::Add(int64_t window, const data::Batch& batch, const at::Tensor& losses,
                      const at::Tensor& asked) {
  if (!wanted_) return;
  const int64_t enough = (batch.seq_len + 1) / 2;
  std::vector<uint8_t> flags(batch.inputs.size());
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    // The input at index i of its document has i + 1 tokens of context for its target.
    const int64_t begin = batch.cu_seqlens[document] + enough - 1;
    const int64_t end = batch.cu_seqlens[document + 1];
    if (begin < end) std::fill(flags.begin() + begin, flags.begin() + end, uint8_t{1});
  }
  const at::Tensor mask = MaskOf(flags, batch, losses);
  sums_.Add(window, 0, losses * mask, asked.logical_and(mask));
}

std::optional<PartSums::Score> ContextSums::Score(dist::Communicator& control) {
  if (!wanted_) return std::nullopt;
  return sums_.Scores(control, "validation_context").front();
}

RecallSums::RecallSums(int64_t num_windows, bool wanted)
    : wanted_(wanted), sums_(num_windows, wanted ? std::ssize(kRecallNames) : 0) {}

void RecallSums::Add(int64_t window, const data::Batch& batch, const at::Tensor& losses,
                     const at::Tensor& asked) {
  if (!wanted_) return;
  const RecallFlags flags = FindRecalled(batch);
  int64_t part = 0;
  for (const std::vector<uint8_t>* const seen : {&flags.token_seen, &flags.bigram_seen}) {
    const at::Tensor mask = MaskOf(*seen, batch, losses);
    for (const at::Tensor& of_part : {mask, mask.logical_not()})
      sums_.Add(window, part++, losses * of_part, asked.logical_and(of_part));
  }
}

std::vector<RecallScore> RecallSums::Scores(dist::Communicator& control) {
  std::vector<RecallScore> scores;
  for (const PartSums::Score& score : sums_.Scores(control, "validation_recall"))
    scores.push_back({.name = kRecallNames[scores.size()],
                      .num_targets = score.num_targets,
                      .loss = score.loss});
  return scores;
}

}  // namespace halflife::eval
