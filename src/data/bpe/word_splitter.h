// Cuts text into words as a tokenizer's pre_tokenizer says. Merges never reach across two words.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "data/bpe/regex.h"
#include "data/bpe/tokenizer_json.h"

namespace halflife::data {

class WordSplitter {
 public:
  // Error kData where a pattern is not supported.
  explicit WordSplitter(const std::vector<SplitStep>& steps);

  // Calls `on_word` for each word of `text` (valid UTF-8), in order; none is empty.
  void Split(std::string_view text, RegexScratch& scratch,
             const std::function<void(std::string_view)>& on_word) const;

 private:
  struct Step {
    std::optional<Regex> regex;
    bool keep_between = true;
    bool add_prefix_space = false;
  };
  struct Sink {
    RegexScratch& scratch;
    const std::function<void(std::string_view)>& on_word;
  };
  // Hands `text` through step `index` and those after it.
  void Run(size_t index, std::string_view text, const Sink& sink) const;
  void Cut(size_t index, std::string_view text, const Sink& sink) const;

  std::vector<Step> steps_;
};

}  // namespace halflife::data
