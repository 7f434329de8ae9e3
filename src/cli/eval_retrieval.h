// `halflife eval --retrieval`: needles in a haystack, by depth and length.
#pragma once

#include "cli/command_line/options.h"
#include "cli/shared_facts.h"
#include "data/token_source.h"
#include "dist/rank_context.h"
#include "infer/model_loader.h"

namespace halflife::cli {

// Like EvaluateLengths, with a row for each method, length and depth. Error kUsage if the model
// gives no answers, or if a length or the vocabulary is too small for the hidden information.
ExitCode EvaluateRetrieval(const EvalOptions& options, const infer::LoadedModel& loaded,
                           const data::TokenView& tokens, const SharedFact& tokens_fact,
                           dist::RankContext& context);

}  // namespace halflife::cli
