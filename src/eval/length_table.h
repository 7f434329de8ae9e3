// Loss and perplexity by the length of the text that a model is given, with several methods side by
// side. Every length scores the same targets: the text is cut into stretches of the longest, and
// each of these into rows of a length that start from nothing.
//
//   LengthTable table = {.train_len = 128, .lengths = {128, 256, 512}};
//   const LengthRow row = ScoreLength(model, tokens, table, method, 256, control);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/attention_statistics.h"
#include "eval/length_method.h"
#include "eval/validation.h"

namespace halflife::eval {

struct LengthTable {
  int64_t train_len = 0;
  std::vector<int64_t> lengths;  // each divides the longest
  int64_t num_stretches = 0;     // the first so many; 0: all
  int64_t batch_tokens = 4096;   // of one forward, or a row
  int64_t bin = 0;               // as ValidationConfig's, and so is `recall`
  bool recall = false;
  bool attention = false;  // statistics of layers of attention, too
};
struct LengthRow {
  std::string method;
  int64_t length = 0;
  double seconds = 0;
  ValidationResult result;
  std::optional<AttentionSummary> attention;
};

// Error kUsage where a length does not divide the longest, the model knows no so long rows, has no
// attention whose statistics are asked for, or predicts no next tokens whose recall is.
void RequireLengths(const model::LanguageModel& model, const LengthTable& table);

// Collective over `control`; after RequireLengths. Error kData where the tokens hold no stretch.
LengthRow ScoreLength(const model::LanguageModel& model, const data::TokenView& tokens,
                      const LengthTable& table, const LengthMethod& method, int64_t length,
                      dist::Communicator& control);

}  // namespace halflife::eval
