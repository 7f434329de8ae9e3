// Declares the modes of `halflife eval` other than the loss of a dataset. Each has a source file of
// its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cli/command_line/options.h"
#include "cli/model_source.h"
#include "core/exit_code.h"
#include "data/token_source.h"
#include "dist/rank_context.h"
#include "infer/model_loader.h"

namespace halflife::cli {

// Returns the number of tokens of a forward pass over rows of several lengths: --batch rows of the
// training length. That of an imported model is its number of positions, which may be far more than
// a forward pass can hold, so it counts up to the longest length.
inline int64_t BatchTokens(const EvalOptions& options, const infer::LoadedModel& loaded) {
  return options.batch *
         std::min<int64_t>(loaded.state.data.seq_len, std::ranges::max(options.lengths));
}

// `halflife eval --lengths`: tables of loss by the length of the text.
//
// Prints the table and writes the files that the options name. With --out, existing rows of the
// file are not scored again, and each row is written when it is known. Throws Error kUsage if the
// file has rows of other weights, texts or cuts. Collective. `tokens_fact` identifies the text.
ExitCode EvaluateLengths(const EvalOptions& options, const infer::LoadedModel& loaded,
                         const data::TokenView& tokens, const SharedFact& tokens_fact,
                         dist::RankContext& context);

// `halflife eval --explain`: the tokens with the largest weights in a model's layers.
//
// Prints the tokens with the largest weights of each layer. Writes the file of the option with the
// numbers that determine all shares: O(T) numbers per head (model/mixers/focus/explanation.h).
ExitCode ExplainWindows(const EvalOptions& options, const infer::LoadedModel& loaded,
                        const data::TokenView& tokens, int64_t seq_len);

// `halflife eval --retrieval`: needles in a haystack, by depth and length.
//
// Like EvaluateLengths, with a row for each method, length and depth. Throws Error kUsage if the
// model gives no answers, or if a length or the vocabulary is too small for the hidden information.
ExitCode EvaluateRetrieval(const EvalOptions& options, const infer::LoadedModel& loaded,
                           const data::TokenView& tokens, const SharedFact& tokens_fact,
                           dist::RankContext& context);

}  // namespace halflife::cli
