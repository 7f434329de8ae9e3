// How a text is scored in rows of a given length: which tokens precede each target, and whether
// rows are computed in pieces.
//
//   const Protocol protocol = Protocol::Parse("sliding:64");
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/language_model.h"

namespace halflife::eval {

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

}  // namespace halflife::eval
