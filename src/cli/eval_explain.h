// `halflife eval --explain`: the tokens with the largest weights in a model's layers.
#pragma once

#include "cli/command_line/options.h"
#include "core/exit_code.h"
#include "data/token_source.h"
#include "infer/model_loader.h"

namespace halflife::cli {

// Prints the tokens with the largest weights of each layer. Writes the file of the option with the
// numbers that determine all shares: O(T) numbers per head (model/mixers/focus/explanation.h).
ExitCode ExplainWindows(const EvalOptions& options, const infer::LoadedModel& loaded,
                        const data::TokenView& tokens, int64_t seq_len);

}  // namespace halflife::cli
