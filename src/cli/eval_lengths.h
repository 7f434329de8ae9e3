// `halflife eval --lengths`: tables of loss by the length of the text.
#pragma once

#include "cli/command_line/options.h"
#include "cli/shared_facts.h"
#include "data/token_source.h"
#include "dist/rank_context.h"
#include "infer/model_loader.h"

namespace halflife::cli {

// Prints the table and writes the files that the options name. With --out, existing rows of the
// file are not scored again, and each row is written when it is known. Error kUsage if the file has
// rows of other weights, texts or cuts. Collective. `tokens_fact` identifies the text.
ExitCode EvaluateLengths(const EvalOptions& options, const infer::LoadedModel& loaded,
                         const data::TokenView& tokens, const SharedFact& tokens_fact,
                         dist::RankContext& context);

}  // namespace halflife::cli
