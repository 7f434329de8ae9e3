// How a text is scored in rows of a length: what each token has before it, and in what pieces it is
// computed.
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
    kSegments,  // rows side by side, which start from nothing: the first tokens know little
    kSliding,   // rows `tokens` apart, of which each scores its last so many
    kCarried,   // as segments, in pieces of `tokens` on a carried state
  };
  // "segments", "sliding:STRIDE", "carried:PIECE". Error kUsage names what there is.
  static Protocol Parse(std::string_view text);

  const std::string& text() const { return text_; }
  Kind kind() const { return kind_; }
  int64_t stride() const { return kind_ == Kind::kSliding ? tokens_ : 0; }  // 0: side by side
  int64_t piece() const { return kind_ == Kind::kCarried ? tokens_ : 0; }   // 0: whole rows

  // Error kUsage where rows of `length` are not whole strides, or the model has no next tokens to
  // slide over, or no state of constant size to carry.
  void RequireFits(const model::LanguageModel& model, int64_t length) const;

 private:
  std::string text_;
  Kind kind_ = Kind::kSegments;
  int64_t tokens_ = 0;
};

}  // namespace halflife::eval
