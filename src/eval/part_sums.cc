#include "eval/part_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <unordered_set>

#include "core/error.h"

namespace halflife::eval {
namespace {

// The tokens and bigrams of a document so far.
class Said {
 public:
  void Add(int32_t token) {
    if (!tokens_.empty()) bigrams_.insert(Bigram(last_, token));
    tokens_.insert(token);
    last_ = token;
  }
  bool Has(int32_t token) const { return tokens_.contains(token); }
  bool HasAfterLast(int32_t token) const { return bigrams_.contains(Bigram(last_, token)); }

 private:
  static uint64_t Bigram(int32_t first, int32_t second) {
    return static_cast<uint64_t>(static_cast<uint32_t>(first)) << 32 |
           static_cast<uint32_t>(second);
  }
  std::unordered_set<int32_t> tokens_;
  std::unordered_set<uint64_t> bigrams_;
  int32_t last_ = 0;
};

}  // namespace

RecallFlags FindRecalled(const data::Batch& batch) {
  RecallFlags flags = {.token_seen = std::vector<uint8_t>(batch.targets.size()),
                       .bigram_seen = std::vector<uint8_t>(batch.targets.size())};
  for (size_t piece = 0; piece + 1 < batch.cu_seqlens.size(); ++piece) {
    Said said;
    const auto end = static_cast<size_t>(batch.cu_seqlens[piece + 1]);
    for (auto t = static_cast<size_t>(batch.cu_seqlens[piece]); t < end; ++t) {
      said.Add(batch.inputs[t]);
      if (batch.targets[t] < 0) continue;
      flags.token_seen[t] = said.Has(batch.targets[t]);
      flags.bigram_seen[t] = said.HasAfterLast(batch.targets[t]);
    }
  }
  return flags;
}

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

void ClassTable::Add(int64_t window, const data::Batch& batch, const at::Tensor& log_probs) {
  const at::Tensor values = log_probs.to(at::kCPU).to(at::kDouble).contiguous();
  const double* from = values.const_data_ptr<double>();
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i, from += num_classes_) {
    const int64_t first = batch.cu_seqlens[i], row = first / batch.seq_len;
    const int32_t label = batch.targets[static_cast<size_t>(first)];
    if (label < 0) continue;
    double* const place = &rows_[static_cast<size_t>((window + row) * width())];
    HL_CHECK(place[0] == 0,
             "a row has several labelled documents, but classification needs one per row");
    place[0] = label + 1;
    std::copy_n(from, num_classes_, place + 1);
  }
}

std::optional<ClassScores> ClassTable::Scores(dist::Communicator& control) {
  if (rows_.empty()) return std::nullopt;
  control
      .AllReduce(Ref(rows_.data(), static_cast<int64_t>(rows_.size())), dist::ReduceOp::kSum,
                 {"validation_classes", 0}, nullptr)
      .WaitHost();
  std::vector<int32_t> labels;
  std::vector<double> log_probs;
  for (size_t at = 0; at < rows_.size(); at += static_cast<size_t>(width())) {
    if (rows_[at] == 0) continue;
    labels.push_back(static_cast<int32_t>(rows_[at]) - 1);
    const auto row = rows_.begin() + static_cast<int64_t>(at);
    log_probs.insert(log_probs.end(), row + 1, row + width());
  }
  return ScoreClasses(labels, log_probs, num_classes_);
}

}  // namespace halflife::eval
