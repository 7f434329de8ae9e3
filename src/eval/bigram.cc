
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/error.h"
#include "data/token_source.h"
#include "eval/validation.h"

namespace halflife::eval {
namespace {

// Calls visit(previous, next) for every target of the windows that ChooseWindows selects.
template <typename Visit>
void ForEachTarget(const data::TokenView& tokens, int64_t seq_len, int64_t num_windows,
                   Visit visit) {
  constexpr size_t kWindowsAtOnce = 64;
  const std::vector<int64_t> chosen = ChooseWindows(num_windows, data::NumWindows(tokens, seq_len));
  for (std::span windows(chosen); !windows.empty();) {
    const auto now = windows.first(std::min(kWindowsAtOnce, windows.size()));
    windows = windows.subspan(now.size());
    const data::Batch batch = data::ReadWindows(tokens, seq_len, now);
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      if (batch.targets[i] != data::kNoTarget) visit(batch.inputs[i], batch.targets[i]);
    }
  }
}

}  // namespace

BigramResult ScoreBigram(const data::Dataset& dataset, data::Split scored, int64_t seq_len,
                         int64_t num_windows, bool reset_at_documents) {
  const int64_t vocab = dataset.info().vocab_size;
  HL_CHECK_AS(ExitCode::kUsage, vocab <= 20000,
              "the bigram baseline supports vocabularies up to 20000, and this one has ", vocab,
              " tokens. Leave out --bigram.");
  std::vector<uint64_t> pairs(vocab * vocab), firsts(vocab);
  ForEachTarget(ViewOf(dataset, data::Split::kTrain, reset_at_documents), seq_len,
                /*num_windows=*/0, [&](int32_t a, int32_t b) {
                  ++pairs[a * vocab + b];
                  ++firsts[a];
                });
  BigramResult result;
  const data::TokenView tokens = ViewOf(dataset, scored, reset_at_documents);
  ForEachTarget(tokens, seq_len, num_windows, [&](int32_t a, int32_t b) {
    result.loss -= std::log((static_cast<double>(pairs[a * vocab + b]) + 1.0) /
                            static_cast<double>(firsts[a] + static_cast<uint64_t>(vocab)));
    ++result.num_targets;
  });
  HL_CHECK_AS(ExitCode::kData, result.num_targets > 0, "the windows of the ", data::Name(scored),
              " split hold no targets");
  result.loss /= static_cast<double>(result.num_targets);
  result.bits_per_byte = data::BitsPerByte(result.loss, tokens.info, reset_at_documents);
  return result;
}

}  // namespace halflife::eval
