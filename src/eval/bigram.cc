#include "eval/bigram.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "data/token_source.h"

namespace halflife::eval {
namespace {

// Calls visit(previous, next) for every target of the windows [0, num_windows).
template <typename Visit>
void ForEachTarget(const data::TokenView& tokens, int64_t seq_len, int64_t num_windows,
                   Visit visit) {
  constexpr int64_t kWindowsAtOnce = 64;
  for (int64_t first = 0; first < num_windows; first += kWindowsAtOnce) {
    const data::Batch batch =
        data::ReadWindows(tokens, seq_len, first, std::min(kWindowsAtOnce, num_windows - first));
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      if (batch.targets[i] != data::kNoTarget) visit(batch.inputs[i], batch.targets[i]);
    }
  }
}

}  // namespace

BigramResult ScoreBigram(const data::Dataset& dataset, data::Split scored, int64_t seq_len,
                         int64_t num_windows, bool reset_at_documents) {
  const int64_t vocab = dataset.info().vocab_size;
  HL_CHECK_AS(ExitCode::kUsage, vocab <= 20000, "a bigram table of a vocabulary of ", vocab,
              " does not fit; the baseline serves vocabularies up to 20000");
  std::vector<uint32_t> pairs(vocab * vocab), firsts(vocab);
  const data::TokenView counted = ViewOf(dataset, data::Split::kTrain, reset_at_documents);
  ForEachTarget(counted, seq_len, data::NumWindows(counted, seq_len), [&](int32_t a, int32_t b) {
    ++pairs[a * vocab + b];
    ++firsts[a];
  });
  const data::TokenView tokens = ViewOf(dataset, scored, reset_at_documents);
  const int64_t available = data::NumWindows(tokens, seq_len);
  BigramResult result;
  ForEachTarget(tokens, seq_len, num_windows > 0 ? std::min(num_windows, available) : available,
                [&](int32_t a, int32_t b) {
                  result.loss -= std::log((pairs[a * vocab + b] + 1.0) /
                                          (firsts[a] + static_cast<double>(vocab)));
                  ++result.num_targets;
                });
  HL_CHECK_AS(ExitCode::kData, result.num_targets > 0, "the windows of the ", data::Name(scored),
              " split hold no targets");
  result.loss /= static_cast<double>(result.num_targets);
  result.bits_per_byte = data::BitsPerByte(result.loss, tokens.info, reset_at_documents);
  return result;
}

}  // namespace halflife::eval
