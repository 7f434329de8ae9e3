// Converts generated ids to text and ends the text at stop strings.
//
//   TextStream stream(tokenizer, {"\n\n", "User:"});
//   while (!stream.stopped()) out << stream.Push(NextId());
//   out << stream.Finish();
//
// Text that may be the beginning of a stop string is held back until that is decided. A stop string
// is not part of the text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace halflife::infer {

class TextStream {
 public:
  // Borrows the tokenizer. The text continues another one (StreamDecoder::Begins::kAfterText)
  // unless `begins` says otherwise. Stop strings are not empty.
  TextStream(const data::Tokenizer& tokenizer, std::vector<std::string> stops,
             data::StreamDecoder::Begins begins = data::StreamDecoder::Begins::kAfterText);

  // Returns the text that is certain with this id. Do not call it after a stop.
  std::string Push(int32_t id) { return Release(decoder_.Push(id), /*last=*/false); }
  // Returns the remaining text.
  std::string Finish() { return Release(decoder_.Finish(), /*last=*/true); }
  // True once the text contains a stop string.
  bool stopped() const { return stopped_; }

 private:
  std::string Release(const std::string& text, bool last);

  data::StreamDecoder decoder_;
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace halflife::infer
