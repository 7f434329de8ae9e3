// Loss and perplexity by the length of the text that a model is given, for several methods. Every
// length and protocol scores the same targets: those of the chosen windows of the longest length.
// Each window is split into rows of the evaluated length, and every row starts from an empty state.
// Sliding rows begin in the text before a window, so that its first targets have context as well.
//
//   LengthTable table = {.train_len = 128, .lengths = {128, 256, 512}};
//   const LengthRow row = ScoreLength(model, tokens, table, method, protocol, 256, control);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/attention_statistics.h"
#include "eval/length_method.h"
#include "eval/validation.h"
#include "model/language_model.h"

namespace halflife::eval {

// How a text is scored in rows of a given length: which tokens precede each target, and whether
// rows are computed in pieces.
//
//   const Protocol protocol = Protocol::Parse("sliding:64");
class Protocol {
 public:
  enum class Kind {
    // Adjacent rows that start from an empty state; their first tokens have little context.
    kSegments,
    kSliding,  // Rows that start `tokens` apart; each scores only its last `tokens` targets.
    kCarried,  // The rows of kSegments, computed in pieces of `tokens` with a carried state.
  };
  // Parses "segments", "sliding:STRIDE" or "carried:PIECE". Throws kUsage for other texts and names
  // the protocols.
  static Protocol Parse(std::string_view text);

  const std::string& text() const { return text_; }
  Kind kind() const { return kind_; }
  int64_t stride() const { return kind_ == Kind::kSliding ? tokens_ : 0; }  // 0: adjacent rows.
  int64_t piece() const { return kind_ == Kind::kCarried ? tokens_ : 0; }   // 0: whole rows.

  // Throws kUsage if `length` is not a multiple of the stride, if the protocol needs next-token
  // targets and the model has none, or if the state to be carried does not have a constant size.
  void RequireFits(const model::LanguageModel& model, int64_t length) const;

 private:
  std::string text_;
  Kind kind_ = Kind::kSegments;
  int64_t tokens_ = 0;
};

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
