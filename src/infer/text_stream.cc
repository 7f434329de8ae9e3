#include "infer/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace halflife::infer {

TextStream::TextStream(const data::Tokenizer& tokenizer, std::vector<std::string> stops,
                       data::StreamDecoder::Begins begins)
    : decoder_(tokenizer, begins), stops_(std::move(stops)) {}

std::string TextStream::Release(const std::string& text, bool last) {
  if (stopped_) return "";
  pending_ += text;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, pending_.find(stop));
  stopped_ = end != std::string::npos;
  if (!stopped_) {
    size_t held = 0;
    for (const std::string& stop : stops_) {
      const size_t most = std::min(stop.size() - 1, pending_.size());
      for (size_t length = most; length > held; --length)
        if (pending_.ends_with(std::string_view(stop).substr(0, length))) held = length;
    }
    end = last ? pending_.size() : pending_.size() - held;
  }
  std::string released = pending_.substr(0, end);
  pending_.erase(0, stopped_ ? std::string::npos : end);
  return released;
}

}  // namespace halflife::infer
