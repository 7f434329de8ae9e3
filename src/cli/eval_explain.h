// `halflife eval --explain`: which tokens a model's layers looked at.
#pragma once

#include "cli/command_line/options.h"
#include "core/exit_code.h"
#include "data/token_source.h"
#include "infer/model_loader.h"

namespace halflife::cli {

// Prints the tokens with most weight of each layer, and writes the file that the option names with
// all that the layers' shares follow from: O(T) numbers a head (model/mixers/focus/explanation.h).
ExitCode ExplainWindows(const EvalOptions& options, const infer::LoadedModel& loaded,
                        const data::TokenView& tokens, int64_t seq_len);

}  // namespace halflife::cli
