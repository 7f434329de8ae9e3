// Loss and perplexity by the length of the text that a model is given, for several methods. Every
// length and protocol scores the same targets: those of the chosen windows of the longest length.
// Each window is split into rows of the evaluated length, and every row starts from an empty state.
// Sliding rows begin in the text before a window, so that its first targets have context as well.
//
//   LengthTable table = {.train_len = 128, .lengths = {128, 256, 512}};
//   const LengthRow row = ScoreLength(model, tokens, table, method, protocol, 256, control);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/attention_statistics.h"
#include "eval/length_method.h"
#include "eval/protocol.h"
#include "eval/validation.h"

namespace halflife::eval {

struct LengthTable {
  int64_t train_len = 0;
  std::vector<int64_t> lengths;  // Each divides the longest.
  int64_t num_windows = 0;       // Windows of the longest length, see ChooseWindows. 0: all.
  int64_t batch_tokens = 4096;   // Tokens of one forward pass; at least one row.
  int64_t bin = 0;               // `bin` and `recall`: see ValidationConfig.
  bool recall = false;
  bool attention = false;  // Also collects statistics of attention layers.
};
struct LengthRow {
  std::string method, protocol;
  int64_t length = 0;
  double seconds = 0;
  ValidationResult result;
  std::optional<AttentionSummary> attention;
};

// Throws kUsage if a length does not divide the longest one, if the model does not support rows of
// that length, or if `attention` or `recall` does not fit the model.
void RequireLengths(const model::LanguageModel& model, const LengthTable& table);

// Throws kUsage if the model supports fewer positions than the longest length.
void RequirePositions(const model::LanguageModel& model, const std::vector<int64_t>& lengths);

// Scores one length. Collective over `control`. Call RequireLengths and Protocol::RequireFits
// first. Throws kData if there are fewer tokens than one window of the longest length plus 1.
LengthRow ScoreLength(const model::LanguageModel& model, const data::TokenView& tokens,
                      const LengthTable& table, const LengthMethod& method,
                      const Protocol& protocol, int64_t length, dist::Communicator& control);

}  // namespace halflife::eval
