// Loss and perplexity by the length of the text that a model is given, with several methods side by
// side. Every length and protocol scores the same targets: those of the chosen windows of the
// longest length. A window is cut into rows of a length, which start from an empty state. Sliding
// rows enter a window from the text before it, so its first targets have context, too.
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
  std::vector<int64_t> lengths;  // each divides the longest
  int64_t num_windows = 0;       // of the longest length, as ChooseWindows takes it; 0: all
  int64_t batch_tokens = 4096;   // of one forward, or a row
  int64_t bin = 0;               // as ValidationConfig's, and so is `recall`
  bool recall = false;
  bool attention = false;  // statistics of layers of attention, too
};
struct LengthRow {
  std::string method, protocol;
  int64_t length = 0;
  double seconds = 0;
  ValidationResult result;
  std::optional<AttentionSummary> attention;
};

// Error kUsage where a length does not divide the longest, the model knows no so long rows, has no
// attention whose statistics are asked for, or predicts no next tokens whose recall is.
void RequireLengths(const model::LanguageModel& model, const LengthTable& table);

// Error kUsage where the model knows fewer positions than one of the lengths.
void RequirePositions(const model::LanguageModel& model, const std::vector<int64_t>& lengths);

// Collective over `control`; after RequireLengths and the protocol's RequireFits. Error kData if
// the tokens are fewer than a window of the longest length and one more.
LengthRow ScoreLength(const model::LanguageModel& model, const data::TokenView& tokens,
                      const LengthTable& table, const LengthMethod& method,
                      const Protocol& protocol, int64_t length, dist::Communicator& control);

}  // namespace halflife::eval
